// SPDX-License-Identifier: Apache-2.0
#include "attention/fast_weight/cuda/walks-inl.cuh"

namespace fmmformer::cuda::fast_weight {
template struct WalkLauncher<Tf32, 256>;
template struct WalkLauncher<Split, 256>;
}  // namespace fmmformer::cuda::fast_weight
