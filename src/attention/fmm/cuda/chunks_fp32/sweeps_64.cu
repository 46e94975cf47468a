// SPDX-License-Identifier: Apache-2.0
#include "attention/fmm/cuda/chunks_fp32/launcher-inl.cuh"

template struct fmmformer::cuda::chunks_fp32::Launcher<64>;
