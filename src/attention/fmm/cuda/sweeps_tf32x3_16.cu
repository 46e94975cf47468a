// SPDX-License-Identifier: Apache-2.0
#include "attention/fmm/cuda/launcher-inl.cuh"

template struct fmmformer::cuda::Launcher<fmmformer::cuda::Tf32x3, 16>;
