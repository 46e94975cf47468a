// SPDX-License-Identifier: Apache-2.0
// What a segment's walk begins with: the sums sum_i f(q_i) grad_out_i^T over later segments'
// queries. Every block of the cluster sums its own segment or, of two segments, both sum a half of
// the second; its warpgroups take turns at the chunks.
#pragma once

#include <cooperative_groups.h>

#include "attention/fmm/cuda/chunks/both_sides/rows.cuh"

namespace fmmformer::cuda::chunks::both_sides {

/// Where a warpgroup has its rows of q and grad_out and the maps' features: the last warpgroup's
/// rows are where the walk does not copy any at first.
template <typename G>
struct SumPlaces {
  static constexpr int kGroups = Groups<G>::kThreads / kGroupThreads, kAreas = 2 + G::kMaps;
  // float [groups][maps][kChunk]: normalisers
  static constexpr int kNorms = Memory<G>::kSegmentSums + (kGroups * kAreas - 2) * G::kArea;
  int queries, gradients, features;

  __device__ SumPlaces(const Walk<G>& walk, int group) {
    using M = Memory<G>;
    static_assert(kNorms + kGroups * G::kMaps * kChunk * int(sizeof(float)) <=
                  M::kSegmentSums + M::kSumsRoom);
    const int first = M::kSegmentSums + group * kAreas * G::kArea;
    const bool last = group == kGroups - 1;
    queries = last ? walk.area(kQ, -2) : first;
    gradients = last ? walk.area(kGradOut, -2) : first + G::kArea;
    features = last ? first : first + 2 * G::kArea;
  }
  static __device__ __forceinline__ float* norms_of(int group) {
    return shared_at<float>(kNorms) + group * G::kMaps * kChunk;
  }
};

/// All maps' feature rows of 64 queries times weight * far_scale / norm, from raw rows and norms,
/// float [maps][kChunk]. Short code, as all here: it is run once, and an instruction that is new to
/// a multiprocessor takes longer to come than to run.
template <typename G>
__device__ __forceinline__ void make_scaled_features(const SweepArgs& args, int rows, int features,
                                                     const float* norms, uint64_t live,
                                                     int thread) {
  const int offset = piece_place<G>(thread / G::kPieces, thread % G::kPieces);
  const float* weights = shared_at<float>(Memory<G>::kWeights);
#pragma unroll 1
  for (int i = 0; i < kTiles; ++i) {
    const int at = offset + i * G::kTile, row = i * kBlockDim + thread / G::kPieces;
    const uint4 raw = *shared_at<uint4>(rows + at);
    const uint32_t x[4] = {raw.x, raw.y, raw.z, raw.w};
    uint32_t decay[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) decay[j] = decay_of(x[j]);
    each_map<G>([&](auto map) {
      constexpr int kMap = decltype(map)::value;
      const float norm = has_row_sums(args) ? norms[kMap * kChunk + row] : args.fixed_norm;
      const SplitFactor factor(__fdividef(weights[kMap] * args.far_scale, norm));
      uint32_t f[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) f[j] = factor.times(feature_pair<kMap>(x[j], decay[j]));
      *shared_at<uint4>(features + kMap * G::kArea + at) = make_uint4(f[0], f[1], f[2], f[3]);
    });
  }
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l) clear_dead<G>(features + l * G::kArea, live, thread);
}

/// Asks for the normalisers of the chunk that a warpgroup sums up.
template <typename G>
__device__ __forceinline__ void begin_norms(const Walk<G>& walk, int group, int thread, int chunk) {
  const SweepArgs& args = walk.args;
  const int map = thread / kChunk, token = chunk * kChunk + thread % kChunk;
  if (map >= G::kMaps || !has_row_sums(args)) return;
  copy_number_async(SumPlaces<G>::norms_of(group) + thread,
                    args.normalisers + (int64_t(walk.pair) * G::kMaps + map) * args.length +
                        min(token, args.length - 1));
}
/// Asks for rows: of the chunk that the warpgroup sums up, if there is one, and of the walk's first
/// chunks, of which it takes every kGroups-th tensor and chunk: k and v of three, q and grad_out of
/// two.
template <typename G>
__device__ __forceinline__ void begin_first_rows(const Walk<G>& walk, int group, int thread,
                                                 int summed) {
  constexpr int kGroups = SumPlaces<G>::kGroups;
  const SumPlaces<G> places(walk, group);
#pragma unroll 1
  for (int task = group - 2 * kGroups; task < 10; task += kGroups) {
    const bool of_sums = task < 0, first = task < -kGroups;
    const int further = task < 6 ? -(task % 3) : -(task & 1);
    int tensor = task < 3   ? kK
                 : task < 6 ? kV
                 : task < 8 ? kQ
                            : kGradOut,
        chunk = walk.chunk + further, to = 0;
    if (of_sums) {
      tensor = first ? kQ : kGradOut, chunk = summed;
      to = first ? places.queries : places.gradients;
    } else {
      to = walk.area(tensor, further);
    }
    if (!of_sums || summed < walk.sums_end) begin_chunk(walk, tensor, chunk, to, thread);
    if (of_sums && !first) {
      begin_norms(walk, group, thread, summed);
      commit_copies();
    }
  }
#pragma unroll 1
  for (int further = 0; further >= -1 && group < G::kMaps; --further)
    begin_numbers_of(walk, further, group, thread);
  commit_copies();
}

/// The block's part of the sums, where the other blocks find it. Every warpgroup makes one chunk's
/// features; then one for each map adds them all up. Asks for the walk's first rows, too. A barrier
/// of the cluster inside; another one must follow when all have read.
template <typename G>
__device__ __forceinline__ void sum_segment(const Walk<G>& walk, int group, int thread) {
  constexpr int kGroups = SumPlaces<G>::kGroups;
  const SumPlaces<G> places(walk, group);
  Block sums[kTiles];
  clear(sums);
  begin_first_rows(walk, group, thread, walk.sums_begin + group);
  wait_for_older_copies();
  show_to_warpgroup();
  __syncthreads();
#pragma unroll 1
  for (int first = walk.sums_begin; first < walk.sums_end; first += kGroups) {
    if (first + group < walk.sums_end) {
      make_scaled_features<G>(walk.args, places.queries, places.features,
                              SumPlaces<G>::norms_of(group), walk.live(first + group), thread);
    }
    show_to_warpgroup();
    __syncthreads();
    if (group < G::kMaps) {
#pragma unroll 1
      for (int part = 0; part < min(kGroups, walk.sums_end - first); ++part) {
        const SumPlaces<G> of_part(walk, part);
        begin_turned_rows<G>(sums, of_part.features + group * G::kArea, of_part.gradients);
        finish_products(sums);
      }
    }
    __syncthreads();
    const int next = first + kGroups + group;
    if (next < walk.sums_end) {
#pragma unroll 1
      for (int i = 0; i < 2; ++i)
        begin_chunk(walk, i == 0 ? kQ : kGradOut, next, i == 0 ? places.queries : places.gradients,
                    thread);
      begin_norms(walk, group, thread, next);
    }
    wait_for_copies();
    show_to_warpgroup();
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 2 * kTiles && group < G::kMaps; ++i) {
    const float(&c)[4] = sums[i / 2][i % 2];
    shared_at<float4>(Memory<G>::kSegmentSums)[(group * 2 * kTiles + i) * kGroupThreads + thread] =
        make_float4(c[0], c[1], c[2], c[3]);
  }
  show_to_warpgroup();  // and to copies of many bytes, which may come to the same places
  cooperative_groups::this_cluster().sync();
}

}  // namespace fmmformer::cuda::chunks::both_sides
