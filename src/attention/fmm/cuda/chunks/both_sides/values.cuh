// SPDX-License-Identifier: Apache-2.0
// The values' warpgroup: the band's probabilities and gradients of scores, for everybody; dv of a
// chunk; and the state after it. The formulas are those of docs/math.md.
#pragma once

#include <cooperative_groups.h>

#include "attention/fmm/cuda/chunks/both_sides/rows.cuh"

namespace fmmformer::cuda::chunks::both_sides {

/// sum_i f(q_i) grad_out_i^T over the queries of later chunks; a warp has sixteen feature channels
/// of every map.
template <typename G>
struct StateAfter {
  Block sums[G::kMaps][kTiles];

  /// What the segment begins with: the sums of all later ones, in their blocks' shared memory.
  /// Others begin their first step meanwhile.
  __device__ void begin(const Walk<G>& walk) {
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l) clear(sums[l]);
    const auto cluster = cooperative_groups::this_cluster();
#pragma unroll 1
    for (int s = walk.first_part(); s < walk.args.segments; ++s) {
      const int end = first_chunk(walk.args, s + 1);
      const char* theirs =
          cluster.map_shared_rank(shared_at<char>(0), s) + thread_anew() % kGroupThreads * 16;
#pragma unroll
      for (int i = 0; i < G::kMaps * 2 * kTiles; ++i) {
        const int map = i / (2 * kTiles);
        const float4 four = *reinterpret_cast<const float4*>(
            theirs + Walk<G>::sums_place(map, i % (2 * kTiles), end));
        float(&c)[4] = sums[map][i / 2 % kTiles][i % 2];
        c[0] += four.x, c[1] += four.y, c[2] += four.z, c[3] += four.w;
      }
    }
  }
};

__device__ __forceinline__ void store_turned(uint4* to, const Block& c) {
  const Fragment f = turned(rounded(c));
  *to = make_uint4(f.r[0], f.r[1], f.r[2], f.r[3]);
}

/// What every lane needs to know of the band, in shared memory: its bits (see Band) and the blend
/// weight. Registers do not hold it beside the state.
template <typename G>
struct NearBand {
  /// By a warp.
  static __device__ void store(const SweepArgs& args) {
    shared_at<uint32_t>(Memory<G>::kBand)[lane_id()] = Band<G, Sweep::kQueries>(args).bits;
  }
  static __device__ __forceinline__ uint32_t bits() {
    return shared_at<uint32_t>(Memory<G>::kBand)[lane_id()];
  }
  static __device__ __forceinline__ float weight() {
    return shared_at<float>(Memory<G>::kWeights)[G::kMaps];
  }
};

/// Of the walk's queries and the keys that they see, in or before their chunk: what near_place
/// holds. Returns <dO, near field> of rows g and g + 8.
template <typename G>
__device__ __forceinline__ float make_near(const Walk<G>& walk, const Loader<G>& load) {
  const SweepArgs& args = walk.args;
  Block p[kMostGroups], g[kMostGroups];
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    const int own = walk.row_tile(which == 0 ? kQ : kGradOut, walk.tile);
    int seen[kMostGroups];
#pragma unroll
    for (int k = 0; k < kMostGroups; ++k)
      seen[k] = walk.row_tile(which == 0 ? kK : kV, walk.tile - k);
#pragma unroll
    for (int s = 0; s < kTiles; ++s) {
      const Fragment row = load.left(own, s);
#pragma unroll
      for (int k = 0; k < kMostGroups; ++k) {
        Block& c = which == 0 ? p[k] : g[k];
        if (s == 0) set_product(c, row, load.right(seen[k], s));
        if (s != 0) add_product(c, row, load.right(seen[k], s));
      }
    }
  }
  const Band<G, Sweep::kQueries> band(args, NearBand<G>::bits());
  const float weight = NearBand<G>::weight();
  const float* log_sums = walk.numbers(0) + walk.tile * kBlockDim;
  const uint32_t live = walk.live_bits(walk.tile);
  // What dropout makes of element i, given a group's bits; read where they are wanted, since there
  // is no register to hold them.
  const auto bits_of = [&](int k) {
    const volatile uint8_t* groups =
        shared_at<uint8_t>(Memory<G>::kDropout) + (walk.tile * kWarpSize + lane_id()) * 4;
    return G::kDrops ? uint32_t(groups[k]) : 0;
  };
  const auto dropped = [&](float x, uint32_t bits, int i) {
    if constexpr (!G::kDrops) return x;
    return bits >> i & 1 ? x * args.keep_factor : 0.f;
  };
  float log_sum[2], dot[2] = {0.f, 0.f}, by_weight = 0.f;
#pragma unroll
  for (int r = 0; r < 2; ++r)
    log_sum[r] = live >> row_of(2 * r) & 1 ? log_sums[row_of(2 * r)] * kLog2E : INFINITY;
#pragma unroll
  for (int k = 0; k < kMostGroups; ++k) {
    const uint32_t inside = band.inside(k, walk.live_bits(walk.tile - k)), bits = bits_of(k);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float &element = p[k][i / 4][i % 4], &gradient = g[k][i / 4][i % 4];
      element = inside >> i & 1 ? element : -INFINITY;
      element = Bf16::exp2(element * band.scale - log_sum[i % 4 / 2]);
      gradient = dropped(gradient, bits, i);
      dot[i % 4 / 2] += element * gradient;
    }
  }
  const float factor = args.near_scale * weight;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    dot[r] = quad_sum(dot[r]);
    by_weight += dot[r];
    dot[r] *= factor;
  }
#pragma unroll
  for (int k = 0; k < kMostGroups; ++k) {
    const uint32_t bits = bits_of(k);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float &element = p[k][i / 4][i % 4], &gradient = g[k][i / 4][i % 4];
      gradient = element * (factor * gradient - dot[i % 4 / 2]);
      element = dropped(element * weight, bits, i);
    }
    store_turned(walk.near_place(walk.tile, kProbabilities, k), p[k]);
    store_turned(walk.near_place(walk.tile, kScoreGradients, k), g[k]);
  }
  return by_weight;
}

template <typename G>
__device__ __forceinline__ void value_step(Walk<G>& walk, const Loader<G>& load,
                                           StateAfter<G>& state) {
  using M = Memory<G>;
  using Role = Groups<G>;
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l)
    put_rows(load, M::kAfter + l * G::kArea + walk.tile * G::kTile, state.sums[l]);
  show_to_warpgroup();
  arrive_at_barrier(kStateMade, 2 * kGroupThreads);
  if (walk.args.has_near) {
    add_to_total<G>(make_near(walk, load));
    arrive_at_barrier(kNearForKeys, 2 * kGroupThreads);
    arrive_at_barrier(kNearForQueries, 2 * kGroupThreads);
  }
  named_barrier(kFeaturesForValues, Role::kThreads);
  walk.forget();
  Fragment scores[kTiles];
  {
    Block a[kTiles];
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l) {
      const int keys = M::kKeyFeatures + l * G::kArea, queries = M::kQueryFeatures + l * G::kArea;
      if (l == 0) begin_columns<false>(a, keys, queries);
      if (l != 0) begin_columns<true>(a, keys, queries);
    }
    finish_products(a);
    seen_scores<true>(scores, walk.tile, [&](int tile) { return rounded(a[tile]); });
  }
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l)
    begin_turned_rows<G>(state.sums[l], M::kQueryFeatures + l * G::kArea, walk.area(kGradOut));
  Block dv[kTiles];
  clear(dv);
  if (walk.args.has_near) {
#pragma unroll
    for (int k = 0; k < kMostGroups; ++k) {
      const int tile = walk.tile + k;
      const uint4 all = *walk.near_place(tile, kProbabilities, k);
      add_columns<G>(dv, Fragment{{all.x, all.y, all.z, all.w}}, load,
                     walk.row_tile(kGradOut, tile), 0);
    }
  }
  int key_features = M::kKeyFeatures;
  asm volatile("" : "+r"(key_features));  // or their operands above would be kept, and spilled
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l)
    begin_rows<G>(dv, key_features + l * G::kArea, M::kAfter + l * G::kArea);
  begin_rows<G>(dv, scores, walk.area(kGradOut));
  finish_products(dv, state.sums);
  walk.await_readers();
  write_rows(walk, load, kDv, dv, M::kStage + G::kArea + walk.tile * G::kTile);
}

}  // namespace fmmformer::cuda::chunks::both_sides
