// SPDX-License-Identifier: Apache-2.0
#include "attention/fmm/cuda/whole/launcher-inl.cuh"

template struct fmmformer::cuda::whole::Launcher<32>;
