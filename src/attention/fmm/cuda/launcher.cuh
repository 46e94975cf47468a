// SPDX-License-Identifier: Apache-2.0
// Launches of the sweeps for one kind of arithmetic and one size of heads; each is compiled in a
// file of its own.
#pragma once

#include "attention/fmm/cuda/mma.cuh"
#include "attention/fmm/cuda/sweep.h"

namespace fmmformer::cuda {

/// What a pass over heads of up to kKeyDim channels carries: as much as registers and shared memory
/// hold.
template <typename Math, int kKeyDim>
struct PassShape {
  static constexpr bool kWide = kKeyDim > 64, kWidest = kKeyDim > 128,
                        kTwoBytes = sizeof(typename Math::Elem) == 2;
  static constexpr int kValueDim = !kWide ? kKeyDim : kWidest && !kTwoBytes ? 32 : 64;
  static constexpr int kWarps = kTwoBytes ? (kWidest ? 4 : 8) : (kWidest ? 2 : 4);
  static constexpr int kMaps = 1, kChunk = kWarps * 16;

  static constexpr int maps(int) { return kMaps; }
  /// Blocks that fill a GPU.
  static constexpr int blocks(int, int, bool) { return 4 * kMultiprocessors; }
};

template <typename Math, int kKeyDim>
struct Launcher {
  /// The most that a block of these sweeps takes.
  static int64_t shared_bytes(const SweepArgs& args);
  static cudaError_t sum_states(const SweepArgs& args, bool of_queries, cudaStream_t stream);
  static cudaError_t forward_sweep(const SweepArgs& args, cudaStream_t stream);
  static cudaError_t query_sweep(const SweepArgs& args, cudaStream_t stream);
  static cudaError_t key_sweep(const SweepArgs& args, cudaStream_t stream);
};

}  // namespace fmmformer::cuda
