// SPDX-License-Identifier: Apache-2.0
// Both sides' gradients of a chunk at once, for heads of 64 channels in bf16 and sequences that a
// few thread blocks share, on GPUs of compute capability 9.0 alone.
#pragma once

#include "attention/fmm/cuda/chunks/launcher.cuh"

namespace fmmformer::cuda::chunks::both_sides {

constexpr int kMostMaps = 2;  // that shared memory has room for
// Tokens. What forward keeps is twice as large as q: for long sequences, which cost memory enough,
// it is not kept.
constexpr int kLongest = 2048;
constexpr int kMostSegments = 8;     // the blocks of a pair are a cluster
constexpr int kShortestSegment = 4;  // chunks; below, what joins segments is no longer small
constexpr int kSharedBytes = 227 * 1024;

/// What forward keeps of a chunk: the state before it, bf16 [maps][64][64] as a warpgroup's
/// operand, and its key sums, float [maps][64].
constexpr int kStateBytes = 64 * 64 * 2, kKeySumBytes = 64 * 4;
constexpr int entry_bytes(int maps) { return maps * (kStateBytes + kKeySumBytes); }

struct Launcher {
  /// Writes dq, dk, dv and weight_sums, from chunk_states.
  static cudaError_t gradient_sweep(const SweepArgs& args, cudaStream_t stream);
};

}  // namespace fmmformer::cuda::chunks::both_sides
