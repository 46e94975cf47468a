// SPDX-License-Identifier: Apache-2.0
#include "attention/fmm/cuda/chunks/launcher-inl.cuh"

template struct fmmformer::cuda::chunks::Launcher<128>;
