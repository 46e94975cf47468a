// SPDX-License-Identifier: Apache-2.0
// What forward kept of a chunk (Entry), on its way to shared memory.
#pragma once

#include "attention/fmm/cuda/narrow/both_sides/shape.cuh"

namespace fmmformer::cuda::narrow::both_sides {

/// Begins to load what forward kept of a chunk for the far fields. By one thread.
template <typename G>
__device__ __forceinline__ void begin_far_entry(const Sequence<G>& at, int chunk) {
  constexpr int kStateBytes = G::kMaps * Entry::kStateBytes, kBytes = G::kMaps * Entry::kRowBytes;
  const CopyEvent event = copy_event<G>(kFarEntry);
  const unsigned char* from = at.entry(chunk);
  event.expect(chunk > 0 ? kStateBytes + kBytes : kBytes);
  if (chunk > 0) event.begin(shared_at<char>(G::kBefore), from, kStateBytes);
  event.begin(shared_at<char>(G::kFactors), from + Entry::factors(G::kMaps), kBytes);
}
/// Before the first chunk there is nothing. By the queries' threads.
template <typename G>
__device__ __forceinline__ void clear_state_before() {
  for (int i = threadIdx.x; i < G::kMaps * Entry::kStateBytes / 16; i += kThreads)
    shared_at<uint4>(G::kBefore)[i] = make_uint4(0, 0, 0, 0);
}
/// Where a chunk's numbers for the band are: log_sum_exp, or dropout's bits, of the warp's tile.
template <typename G>
__device__ __forceinline__ char* near_numbers(int warp, int chunk, bool bits) {
  return bits
             ? shared_at<char>(G::kBits) + (chunk & 1) * Entry::kBitBytes + warp * kWarpSize * 4
             : shared_at<char>(G::kLogSums) + (chunk & 1) * Entry::kRowBytes + warp * kBlockDim * 4;
}
/// Begins to load a chunk's rows of queries, and those numbers. By one thread.
template <typename G>
__device__ __forceinline__ void begin_query_rows(const Sequence<G>& at, const RowMaps& maps,
                                                 int offset) {
  constexpr int kRowsBytes = 2 * kChunkBytes;
  const int chunk = at.chunk + offset;
  const CopyEvent event = copy_event<G>(kQueryRows);
  event.expect(at.args.has_near ? kRowsBytes + Entry::kRowBytes + (G::kDrops ? Entry::kBitBytes : 0)
                                : kRowsBytes);
  begin_chunk(at, maps, kQ, chunk, at.own_chunk(0, offset), event);
  begin_chunk(at, maps, kGradOut, chunk, at.own_chunk(1, offset), event);
  if (!at.args.has_near) return;
  const unsigned char* from = at.entry(chunk);
  event.begin(near_numbers<G>(0, chunk, false), from + Entry::log_sums(G::kMaps), Entry::kRowBytes);
  if (G::kDrops)
    event.begin(near_numbers<G>(0, chunk, true), from + Entry::bits(G::kMaps), Entry::kBitBytes);
}

}  // namespace fmmformer::cuda::narrow::both_sides
