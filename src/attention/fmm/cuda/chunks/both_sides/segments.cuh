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

/// What the walk begins with, by number: k and v of three chunks, q and grad_out of two, from the
/// one after its last on.
struct FirstRows {
  static constexpr int kCount = 10;
  int tensor, further;

  __device__ __forceinline__ explicit FirstRows(int number)
      : tensor(number < 3   ? kK
               : number < 6 ? kV
               : number < 8 ? kQ
                            : kGradOut),
        further(number < 6 ? -(number % 3) : -(number & 1)) {}
};
/// The rows of the pair in a tensor.
template <typename G>
__device__ __forceinline__ HeadRows rows_of(const Walk<G>& walk, int tensor) {
  const SweepArgs& args = walk.args;
  const auto of = [&](const View& view) { return HeadRows(view, args, walk.b, walk.h); };
  return tensor == kQ   ? of(args.q)
         : tensor == kK ? of(args.k)
         : tensor == kV ? of(args.v)
                        : of(args.grad_out);
}
/// Asks for the rows and normalisers of a chunk that the warpgroup sums up.
template <typename G>
__device__ __forceinline__ void begin_summed_rows(const Walk<G>& walk, int group, int thread,
                                                  int chunk) {
  const SumPlaces<G> places(walk, group);
#pragma unroll 1
  for (int i = 0; i < 2; ++i)
    copy_chunk<G>(rows_of(walk, i == 0 ? kQ : kGradOut), chunk,
                  i == 0 ? places.queries : places.gradients, thread);
  begin_norms(walk, group, thread, chunk);
}
/// Asks for what the walk begins with, and for the chunk that the warpgroup sums up first, in two
/// groups of copies.
template <typename G>
__device__ __forceinline__ void begin_first_rows(const Walk<G>& walk, int group, int thread) {
  if (const int summed = walk.sums_begin + group; summed < walk.sums_end)
    begin_summed_rows(walk, group, thread, summed);
  commit_copies();
#pragma unroll 1
  for (int i = group; i < FirstRows::kCount; i += SumPlaces<G>::kGroups) {
    const FirstRows first(i);
    copy_chunk<G>(rows_of(walk, first.tensor), walk.chunk + first.further,
                  walk.area(first.tensor, first.further), thread);
  }
#pragma unroll 1
  for (int further = 0; further >= -1 && group < G::kMaps; --further)
    begin_numbers_of(walk, further, group, thread);
  commit_copies();
}
/// Waits for what the walk begins with. A warpgroup clears what it has copied.
template <typename G>
__device__ __forceinline__ void await_first_rows(const Walk<G>& walk) {
  wait_for_copies();
  if (!walk.args.token_mask) return;
#pragma unroll 1
  for (int i = threadIdx.x / kGroupThreads; i < FirstRows::kCount; i += SumPlaces<G>::kGroups) {
    const FirstRows first(i);
    clear_dead<G>(walk.area(first.tensor, first.further), walk.live(walk.chunk + first.further),
                  threadIdx.x % kGroupThreads);
  }
}

/// The features of the chunk whose rows the warpgroup has copied. Of rows, a thread reads
/// what it has copied itself.
template <typename G>
__device__ __forceinline__ void make_summed_features(const Walk<G>& walk, int group, int thread,
                                                     int chunk) {
  const SumPlaces<G> places(walk, group);
  const uint64_t live = walk.live(chunk);
  if (walk.args.token_mask) {
    clear_dead<G>(places.queries, live, thread);
    clear_dead<G>(places.gradients, live, thread);
  }
  make_scaled_features<G>(walk.args, places.queries, places.features, SumPlaces<G>::norms_of(group),
                          live, thread);
}

/// The block's part of the sums, where the other blocks find it, from begin_first_rows on. Every
/// warpgroup makes one chunk's features; then one for each map adds them all up. A barrier of the
/// cluster must follow, and another one when all have read.
template <typename G>
__device__ __forceinline__ void sum_segment(const Walk<G>& walk, int group, int thread) {
  constexpr int kGroups = SumPlaces<G>::kGroups;
  Block sums[kTiles];
  clear(sums);
  wait_for_older_copies();
  __syncthreads();
#pragma unroll 1
  for (int first = walk.sums_begin; first < walk.sums_end; first += kGroups) {
    if (first + group < walk.sums_end) make_summed_features(walk, group, thread, first + group);
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
    if (const int next = first + kGroups + group; next < walk.sums_end)
      begin_summed_rows(walk, group, thread, next);
    wait_for_copies();
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 2 * kTiles && group < G::kMaps; ++i) {
    const float(&c)[4] = sums[i / 2][i % 2];
    shared_at<float4>(walk.sums_place(group, i, walk.end))[thread] =
        make_float4(c[0], c[1], c[2], c[3]);
  }
}

}  // namespace fmmformer::cuda::chunks::both_sides
