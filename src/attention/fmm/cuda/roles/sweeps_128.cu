// SPDX-License-Identifier: Apache-2.0
#include "attention/fmm/cuda/roles/launcher-inl.cuh"

template struct fmmformer::cuda::roles::Launcher<128>;
