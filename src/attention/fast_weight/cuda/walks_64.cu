// SPDX-License-Identifier: Apache-2.0
#include "attention/fast_weight/cuda/walks-inl.cuh"

namespace fmmformer::cuda::fast_weight {
template struct WalkLauncher<Tf32, 64>;
template struct WalkLauncher<Split, 64>;
}  // namespace fmmformer::cuda::fast_weight
