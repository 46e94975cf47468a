// SPDX-License-Identifier: Apache-2.0
#include "attention/fmm/cuda/warpgroups/launcher-inl.cuh"

template struct fmmformer::cuda::warpgroups::Launcher<128>;
