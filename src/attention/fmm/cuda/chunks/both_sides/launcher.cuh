// SPDX-License-Identifier: Apache-2.0
// Forward in one launch, and both sides' gradients of a chunk at once, for heads of up to 64
// channels in bf16 and sequences that a few thread blocks share, on GPUs of compute capability 9.0
// alone.
#pragma once

#include "attention/fmm/cuda/chunks/launcher.cuh"

namespace fmmformer::cuda::chunks::both_sides {

constexpr int kMostMaps = 2;  // that shared memory has room for
// Tokens. What forward keeps is twice as large as q: for long sequences, which cost memory enough,
// it is not kept.
constexpr int kLongest = 2048;
constexpr int kMostSegments = 8;  // the blocks of a pair are a cluster
// Above, what they begin with is faster by a launch of its own.
constexpr int kMostForwardSegments = 2;
constexpr int kShortestSegment = 4;  // chunks; below, what joins segments is no longer small
constexpr int kSharedBytes = 227 * 1024;

/// What forward keeps of a chunk: the state before it, bf16 [maps][64][64] as a warpgroup's
/// operand, and its key sums, float [maps][64]; with dropout also which of the band's elements
/// stay, uint32_t [tiles][32], a word for what a lane holds of its warp's rows.
constexpr int kStateBytes = 64 * 64 * 2, kKeySumBytes = 64 * 4, kDropoutBytes = 4 * 32 * 4;
constexpr int dropout_place(int maps) { return maps * (kStateBytes + kKeySumBytes); }
constexpr int entry_bytes(int maps, bool drops) {
  return dropout_place(maps) + (drops ? kDropoutBytes : 0);
}
/// All of it, and tickets behind it (weight_sums.cuh).
inline int64_t kept_bytes(const SweepArgs& args) {
  const int64_t chunks = (args.length + kChunk - 1) / kChunk;
  return args.batch * args.heads * chunks * entry_bytes(args.maps, args.drop_below > 0) +
         int64_t{args.heads} * (args.maps + 1) * int64_t{sizeof(unsigned)};
}

struct Launcher {
  /// Writes out, log_sum_exp, normalisers and, if there is room for them, chunk_states; makes
  /// itself what segments begin with.
  static cudaError_t forward_sweep(const SweepArgs& args, cudaStream_t stream);
  /// Writes dq, dk, dv and weight_sums, from chunk_states; or the weights' gradients themselves,
  /// if it reduces_weight_sums.
  static cudaError_t gradient_sweep(const SweepArgs& args, cudaStream_t stream);
  /// Not without this forward_sweep, which leaves tickets for it.
  static bool reduces_weight_sums(const SweepArgs& args) {
    return args.weight_sums && has_weight_of_each_head(args) &&
           args.segments <= kMostForwardSegments;
  }
};

}  // namespace fmmformer::cuda::chunks::both_sides
