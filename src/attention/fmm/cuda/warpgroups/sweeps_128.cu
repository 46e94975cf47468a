// SPDX-License-Identifier: Apache-2.0
// For sm_90a alone: see src/CMakeLists.txt.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "for sm_90a alone: elsewhere products of a warpgroup would be nothing at all"
#endif

#include "attention/fmm/cuda/warpgroups/launcher-inl.cuh"

template struct fmmformer::cuda::warpgroups::Launcher<128>;
