// SPDX-License-Identifier: Apache-2.0
// Launches of the sweeps whose warps have roles, for heads of up to kDim channels in bf16; each
// size is compiled in a file of its own.
#pragma once

#include "attention/fmm/cuda/sweep.h"

namespace fmmformer::cuda::roles {

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
  static constexpr int kValueDim = kDim, kChunk = 16;

  /// Feature maps of a pass; the results of two wide ones need more shared memory than GPUs before
  /// 9.0 have, and of three of 64 channels more than GPUs of 8.6 and 8.9.
  static constexpr int maps(int shared_bytes) {
    if (kDim > 64) return shared_bytes >= 200 * 1024 ? 2 : 1;
    return kDim > 32 && shared_bytes < 100 * 1024 ? 2 : kMapsAtOnce;
  }

  /// Blocks that fill a GPU at once, by the warps that registers leave room for and, wide heads,
  /// by shared memory.
  static constexpr int blocks(int head_dim, int maps, bool near) {
    // One block at a time; three rounds, so that the last one's gaps matter less.
    if (kDim > 64) return 3 * kMultiprocessors;
    constexpr int kPart = kDim < 32 ? kDim : 32, kWarpsAtOnce = kDim <= 16 ? 20 : 16;
    const int roles = maps * ((head_dim + kPart - 1) / kPart) + (near ? 1 : 0);
    const int by_warps = kWarpsAtOnce / (roles < 2 ? 2 : roles);
    return kMultiprocessors * (kDim > 32 && by_warps > 4 ? 4 : by_warps);
  }
};

}  // namespace fmmformer::cuda::roles
