// SPDX-License-Identifier: Apache-2.0
// Launches of the sweeps whose products are those of warpgroups, for heads of up to kDim channels
// in bf16, on GPUs of compute capability 9.0 alone.
#pragma once

#include "attention/fmm/cuda/chunks/launcher.cuh"

namespace fmmformer::cuda::warpgroups {

using chunks::kChunk;

/// The key sweep is two: dk, then dv. Each then fits the registers, and together they take no
/// longer.
enum class Sweep { kForward, kQueries, kKeys, kValues, kSumOfKeys, kSumOfQueries };

template <int kDim>
struct Launcher {
  static cudaError_t sum_states(const SweepArgs& args, bool of_queries, cudaStream_t stream);
  static cudaError_t forward_sweep(const SweepArgs& args, cudaStream_t stream);
  static cudaError_t query_sweep(const SweepArgs& args, cudaStream_t stream);
  static cudaError_t key_sweep(const SweepArgs& args, cudaStream_t stream);
};

/// What a pass carries, as PassShape says it of the other kernels.
template <int kDim>
struct PassShape {
  static constexpr int kValueDim = kDim, kChunk = warpgroups::kChunk;
  static constexpr int kMaps = 2;  // whose states registers have room for
  static constexpr int kSharedBytes = 227 * 1024;
  static constexpr int maps(int) { return kMaps; }
  /// Blocks that fill a GPU, in three rounds, so that the last one's gaps matter less.
  static constexpr int blocks(int, int, bool) { return 3 * kMultiprocessors; }
  /// Where all of backward is one launch: short pieces fill gaps, and each hands its state on by
  /// way of memory.
  static constexpr int kValuePieces = 3;
  /// From so many pairs on, whole walks and backward in one launch take less time than segments and
  /// their sums (as much with 72).
  static constexpr int kUncutPairs = 80;
};

}  // namespace fmmformer::cuda::warpgroups
