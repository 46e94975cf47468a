// SPDX-License-Identifier: Apache-2.0
// Launches of the sweeps for one kind of arithmetic and one size of states; each size is compiled
// in files of its own.
#pragma once

#include <type_traits>

#include "attention/fast_weight/cuda/sweep.h"
#include "attention/fast_weight/cuda/tf32.cuh"
#include "attention/fmm/cuda/launch.cuh"

namespace fmmformer::cuda::fast_weight {

/// Sizes for which plain calls (tiles.cuh) have kernels of their own.
template <typename Math, int kDim>
inline constexpr bool kHasPlain = std::is_same_v<Math, Tf32>&& kDim <= 64;

/// Walks over states with up to kDim channels of keys.
template <typename Math, int kDim>
struct WalkLauncher {
  static cudaError_t forward_sweep(const SweepArgs& args, cudaStream_t stream);
  static cudaError_t write_sweep(const SweepArgs& args, cudaStream_t stream);
  static cudaError_t solve_sweep(const SweepArgs& args, cudaStream_t stream);
  static cudaError_t transition_sweep(const SweepArgs& args, bool of_gradients,
                                      cudaStream_t stream);
};

/// ... with up to kDim channels of keys and of values.
template <typename Math, int kDim>
struct GradientLauncher {
  static cudaError_t query_sweep(const SweepArgs& args, cudaStream_t stream);
  static cudaError_t key_sweep(const SweepArgs& args, cudaStream_t stream);
};

/// Backward in one kernel, for short sequences of heads with up to kDim channels.
template <typename Math, int kDim>
struct ShortLauncher {
  static cudaError_t backward(const SweepArgs& args, cudaStream_t stream);
};

}  // namespace fmmformer::cuda::fast_weight
