// SPDX-License-Identifier: Apache-2.0
#include "attention/fmm/cuda/chunks_fp32/launcher-inl.cuh"

namespace fmmformer::cuda::chunks_fp32 {

extern template struct Launcher<64>;  // has the sums
template struct Launcher<64, /*kFed=*/true>;

}  // namespace fmmformer::cuda::chunks_fp32
