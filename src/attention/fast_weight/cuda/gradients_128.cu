// SPDX-License-Identifier: Apache-2.0
#include "attention/fast_weight/cuda/gradients-inl.cuh"

namespace fmmformer::cuda::fast_weight {
template struct GradientLauncher<Tf32, 128>;
template struct GradientLauncher<Split, 128>;
}  // namespace fmmformer::cuda::fast_weight
