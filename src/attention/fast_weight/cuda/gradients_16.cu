// SPDX-License-Identifier: Apache-2.0
#include "attention/fast_weight/cuda/gradients-inl.cuh"

namespace fmmformer::cuda::fast_weight {
template struct GradientLauncher<Tf32, 16>;
template struct GradientLauncher<Split, 16>;
}  // namespace fmmformer::cuda::fast_weight
