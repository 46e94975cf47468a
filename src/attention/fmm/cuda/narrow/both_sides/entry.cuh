// SPDX-License-Identifier: Apache-2.0
// What forward kept of a chunk (Entry), on its way to shared memory.
#pragma once

#include "attention/fmm/cuda/narrow/both_sides/shape.cuh"

namespace fmmformer::cuda::narrow::both_sides {

/// Begins to load what forward kept of a chunk, its `entry`, for the far fields. By a lane of each
/// of the queries' warps, which share it out: one thread alone takes long, and its warp's products
/// are the whole warpgroup's. So with rows.
template <typename G>
__device__ __forceinline__ void begin_far_entry(int warp, const unsigned char* entry, int chunk) {
  constexpr int kStateBytes = G::kMaps * Entry::kStateBytes, kBytes = G::kMaps * Entry::kRowBytes;
  const CopyEvent event = copy_event<G>(kFarEntry);
  if (warp == 0) {
    event.expect(chunk > 0 ? kStateBytes + kBytes : kBytes);
    if (chunk > 0) event.begin(shared_at<char>(G::kBefore), entry, kStateBytes);
  } else if (warp == 1) {
    event.begin(shared_at<char>(G::kFactors), entry + Entry::factors(G::kMaps), kBytes);
  }
}
/// Before the first chunk there is nothing. By the queries' threads.
template <typename G>
__device__ __forceinline__ void clear_state_before(const Sequence<G>& at) {
  for (int i = at.warp * kWarpSize + int(at.lane); i < G::kMaps * Entry::kStateBytes / 16;
       i += kThreads)
    shared_at<uint4>(G::kBefore)[i] = make_uint4(0, 0, 0, 0);
}
/// Where a chunk's numbers for the band are: log_sum_exp, or dropout's bits, of the warp's tile.
template <typename G>
__device__ __forceinline__ char* near_numbers(int warp, int chunk, bool bits) {
  return bits
             ? shared_at<char>(G::kBits) + (chunk & 1) * Entry::kBitBytes + warp * kWarpSize * 4
             : shared_at<char>(G::kLogSums) + (chunk & 1) * Entry::kRowBytes + warp * kBlockDim * 4;
}
/// Begins to load a chunk's rows of queries, and those numbers, to the ring's slot `offset` from
/// this one. By a lane of each of the queries' warps.
template <typename G>
__device__ __forceinline__ void begin_query_rows(const Sequence<G>& at, const RowMaps& maps, int b,
                                                 int chunk, const unsigned char* entry,
                                                 int offset) {
  constexpr int kRowsBytes = 2 * kChunkBytes;
  const CopyEvent event = copy_event<G>(kQueryRows);
  const bool near = at.args.has_near;
  if (at.warp == 0) {
    event.expect(near ? kRowsBytes + Entry::kRowBytes + (G::kDrops ? Entry::kBitBytes : 0)
                      : kRowsBytes);
    begin_chunk(at, maps, kQ, b, chunk, at.own_chunk(0, offset), event);
  } else if (at.warp == 1) {
    begin_chunk(at, maps, kGradOut, b, chunk, at.own_chunk(1, offset), event);
  } else if (at.warp == 2) {
    if (near)
      event.begin(near_numbers<G>(0, chunk, false), entry + Entry::log_sums(G::kMaps),
                  Entry::kRowBytes);
  } else if (G::kDrops) {
    if (near)
      event.begin(near_numbers<G>(0, chunk, true), entry + Entry::bits(G::kMaps), Entry::kBitBytes);
  }
}

}  // namespace fmmformer::cuda::narrow::both_sides
