// SPDX-License-Identifier: Apache-2.0
// For sm_90a alone: see src/CMakeLists.txt.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "for sm_90a alone: elsewhere nobody hands registers round, and those who walk lack them"
#endif

#include "attention/fmm/cuda/chunks_fp32/launcher-inl.cuh"

namespace fmmformer::cuda::chunks_fp32 {

extern template struct Launcher<64>;  // has the sums
template struct Launcher<64, /*kFed=*/true>;

}  // namespace fmmformer::cuda::chunks_fp32
