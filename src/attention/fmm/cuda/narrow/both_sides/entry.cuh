// SPDX-License-Identifier: Apache-2.0
// What forward kept of a chunk (Entry), on its way to shared memory.
#pragma once

#include "attention/fmm/cuda/narrow/both_sides/shape.cuh"

namespace fmmformer::cuda::narrow::both_sides {

/// Begins to load what forward kept of a chunk for the far fields; zeros for the state before the
/// first. A warp loads that part of the state in which its results are staged.
template <typename G>
__device__ __forceinline__ void begin_far_entry(const Sequence<G>& at, int chunk) {
  const unsigned char* from = at.entry(chunk);
  constexpr int kPart = G::kMaps * Entry::kStateBytes / kWarps;
  static_assert(kPart % 16 == 0);
#pragma unroll
  for (int i = 0; i < kPart; i += kWarpSize * 16) {
    const int piece = i + int(at.lane) * 16, place = at.warp * kPart + piece;
    if (piece < kPart) copy_async(shared_at<char>(G::kBefore + place), from + place, chunk > 0);
  }
  const int rest = threadIdx.x * 16;
  if (rest < G::kMaps * Entry::kRowBytes)
    copy_async(shared_at<char>(G::kFactors + rest), from + Entry::factors(G::kMaps) + rest, true);
}
/// Where a chunk's numbers for the band are: log_sum_exp, or dropout's bits, of the warp's tile.
template <typename G>
__device__ __forceinline__ char* near_numbers(const Sequence<G>& at, int chunk, bool bits) {
  return bits ? shared_at<char>(G::kBits) + (chunk & 1) * Entry::kBitBytes + at.warp * kWarpSize * 4
              : shared_at<char>(G::kLogSums) + (chunk & 1) * Entry::kRowBytes +
                    at.warp * kBlockDim * 4;
}
/// Begins to load them, for the warp itself.
template <typename G>
__device__ __forceinline__ void begin_near_entry(const Sequence<G>& at, int chunk) {
  constexpr int kPieces = kBlockDim / 4, kBitPieces = G::kDrops ? kWarpSize / 4 : 0;
  if (at.lane >= kPieces + kBitPieces) return;
  const bool bits = at.lane >= kPieces;
  const int piece = int(bits ? at.lane - kPieces : at.lane) * 16;
  const int from = bits ? Entry::bits(G::kMaps) + at.warp * kWarpSize * 4
                        : Entry::log_sums(G::kMaps) + at.warp * kBlockDim * 4;
  copy_async(near_numbers(at, chunk, bits) + piece, at.entry(chunk) + from + piece, true);
}

}  // namespace fmmformer::cuda::narrow::both_sides
