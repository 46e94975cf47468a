// SPDX-License-Identifier: Apache-2.0
// What a segment's walk begins with: the sums sum_i f(q_i) grad_out_i^T over later segments'
// queries. Every block of the cluster sums its own segment or, of two segments, both sum a half of
// the second; a warpgroup has one map, and every other chunk.
#pragma once

#include <cooperative_groups.h>

#include "attention/fmm/cuda/chunks/both_sides/rows.cuh"

namespace fmmformer::cuda::chunks::both_sides {

constexpr int kTurns = 2;  // chunks that are summed side by side

/// Where such a warpgroup has its rows, two pairs of areas: q and grad_out.
template <typename G>
__device__ __forceinline__ int summed_rows(int group, int which) {
  using M = Memory<G>;
  const int at = 2 * (2 * group + which) * G::kArea;
  constexpr int kRoom = M::kKeyFeatures - M::kRows;  // beyond it the states' place
  return at < kRoom ? M::kRows + at : M::kBefore + at - kRoom;
}

/// One map's sums over every kTurns-th chunk, into the first of the warpgroup's rows, float4
/// [2 * kTiles][kGroupThreads].
template <typename G>
__device__ __forceinline__ void sum_chunks(const Walk<G>& walk) {
  using M = Memory<G>;
  const SweepArgs& args = walk.args;
  const int group = __shfl_sync(~0u, threadIdx.x / kGroupThreads, 0);
  const int thread = threadIdx.x % kGroupThreads;
  const Map map(args, group / kTurns, walk.h);
  const int first = walk.sums_begin + group % kTurns, features = M::kKeyFeatures + group * G::kArea;
  const auto begin = [&](int chunk, int which) {
    if (chunk < walk.sums_end) {
      begin_chunk(walk, kQ, chunk, summed_rows<G>(group, which), thread);
      begin_chunk(walk, kGradOut, chunk, summed_rows<G>(group, which) + G::kArea, thread);
    }
    commit_copies();
  };
  const auto meet_group = [&] {
    show_to_warpgroup();
    named_barrier(kInGroup + group, kGroupThreads);
  };
  Block sums[kTiles];
  clear(sums);
  begin(first, 0);
  int which = 0;
#pragma unroll 1
  for (int chunk = first; chunk < walk.sums_end; chunk += kTurns, which ^= 1) {
    begin(chunk + kTurns, which ^ 1);
    float norms[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles && has_row_sums(args); ++i) {
      const int token = chunk * kChunk + i * kBlockDim + thread / G::kPieces;
      norms[i] = args.normalisers[(int64_t(walk.pair) * G::kMaps + map.index) * args.length +
                                  min(token, args.length - 1)];
    }
    wait_for_older_copies();
    meet_group();
    const int rows = summed_rows<G>(group, which);
    make_query_features<G, false>(args, map, rows, 0, features, walk.live(chunk), thread,
                                  [&](int tile, int) { return norms[tile]; });
    meet_group();
    begin_turned_rows<G>(sums, features, rows + G::kArea);
    finish_products(sums);
  }
  wait_for_copies();
  meet_group();
#pragma unroll
  for (int i = 0; i < 2 * kTiles; ++i) {
    const float(&c)[4] = sums[i / 2][i % 2];
    shared_at<float4>(summed_rows<G>(group, 0))[i * kGroupThreads + thread] =
        make_float4(c[0], c[1], c[2], c[3]);
  }
}

/// The block's part of the sums, where the other blocks find it. A barrier of the cluster inside;
/// another one must follow when all have read.
template <typename G>
__device__ __forceinline__ void sum_segment(const Walk<G>& walk) {
  using M = Memory<G>;
  if (walk.sums_begin < walk.sums_end) {
    if (threadIdx.x < kTurns * G::kMaps * kGroupThreads) sum_chunks(walk);
    __syncthreads();
    constexpr int kOfMap = 2 * kTiles * kGroupThreads;
    for (int i = threadIdx.x; i < G::kMaps * kOfMap; i += Groups<G>::kThreads) {
      const int group = i / kOfMap * kTurns, at = i % kOfMap;
      const float4 one = shared_at<float4>(summed_rows<G>(group, 0))[at],
                   other = shared_at<float4>(summed_rows<G>(group + 1, 0))[at];
      shared_at<float4>(M::kSegmentSums)[i] =
          make_float4(one.x + other.x, one.y + other.y, one.z + other.z, one.w + other.w);
    }
  }
  cooperative_groups::this_cluster().sync();
}

}  // namespace fmmformer::cuda::chunks::both_sides
