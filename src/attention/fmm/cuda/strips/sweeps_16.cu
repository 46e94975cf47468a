// SPDX-License-Identifier: Apache-2.0
#include "attention/fmm/cuda/strips/launcher-inl.cuh"

template struct fmmformer::cuda::strips::Launcher<fmmformer::cuda::Bf16, 16>;
