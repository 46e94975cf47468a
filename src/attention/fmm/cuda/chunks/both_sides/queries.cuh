// SPDX-License-Identifier: Apache-2.0
// A queries' warpgroup: one map's part of dq, its rows' dots, for the keys' warpgroup, and the sums
// of features times dots. The formulas are those of docs/math.md.
#pragma once

#include "attention/fmm/cuda/chunks/both_sides/rows.cuh"

namespace fmmformer::cuda::chunks::both_sides {

/// sum_i dot_i f(q_i) over the queries of later chunks, of one map; a warp has sixteen channels, a
/// lane channels g and g + 8 of them.
template <typename G>
struct DotSums {
  float of[2] = {0.f, 0.f};

  __device__ __forceinline__ void add(const Walk<G>& walk, const Loader<G>& load, int map) {
    using M = Memory<G>;
    const float* dots = shared_at<float>(M::kDots) + map * kChunk + lane_id() % 4 * 2;
    float sum[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int t = 0; t < kTiles; ++t, dots += kBlockDim) {
      const Fragment f =
          load.left_turned(M::kQueryFeatures + map * G::kArea + t * G::kTile, walk.tile);
      Bf16::multiply(sum, f, {{Bf16::pack(dots[0], dots[1]), Bf16::pack(dots[8], dots[9])}});
    }
    of[0] += sum[0], of[1] += sum[2];
  }
  __device__ __forceinline__ void publish(int map, int tile) const {
    put(shared_at<float>(Memory<G>::kDotSums) + map * G::kDim, tile);
  }
  /// When the walk is over: to the blocks whose keys they are taken from.
  __device__ __forceinline__ void send(int map, int tile) const {
    const auto cluster = cooperative_groups::this_cluster();
    const int segment = cluster.block_rank();
    if (segment == 0) return;
    float* all = shared_at<float>(Memory<G>::kTaken) + ((segment - 1) * G::kMaps + map) * G::kDim;
#pragma unroll 1
    for (int to = 0; to <= segment; ++to) put(cluster.map_shared_rank(all, to), tile);
  }

 private:
  __device__ __forceinline__ void put(float* to, int tile) const {
    if (lane_id() % 4 != 0) return;
    to += tile * kBlockDim;
    to[row_of(0)] = of[0], to[row_of(2)] = of[1];
  }
};

/// What rows g and g + 8 have.
struct RowFactors {
  float dot[2];     // <u, U> / norm, 0 where no gradient flows through the normaliser
  float factor[2];  // weight * far_scale / norm
};

/// From U = sum_j G_ij f(k_j): dots, for the keys' warpgroup too. Adds <dO, far field> to
/// quad_total.
template <typename G>
__device__ __forceinline__ RowFactors row_factors(const Block (&u)[kTiles], const Walk<G>& walk,
                                                  const Loader<G>& load, const Map<G>& map,
                                                  int plain) {
  using M = Memory<G>;
  const SweepArgs& args = walk.args;
  RowFactors of;
  float dot[2] = {0.f, 0.f};
#pragma unroll
  for (int b = 0; b < kTiles; ++b) {
    const Fragment f = load.left(plain, b);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float low, high;
      Bf16::unpack(f.r[j], low, high);
      dot[j % 2] += low * u[b][j / 2][j % 2 * 2] + high * u[b][j / 2][j % 2 * 2 + 1];
    }
  }
  const uint32_t live = walk.live_bits(walk.tile);
  const float* norms = walk.numbers(1 + map.index) + walk.tile * kBlockDim;
  float* dots = shared_at<float>(M::kDots) + map.index * kChunk + walk.tile * kBlockDim;
  float by_weight = 0.f;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = row_of(2 * r);
    dot[r] = quad_sum(dot[r]);
    const float norm = has_row_sums(args) ? norms[row] : args.fixed_norm;
    const float inverse = live >> row & 1 ? __fdividef(1.f, norm) : 0.f,
                scale = args.far_scale * inverse;
    by_weight += scale * dot[r];
    of.factor[r] = scale * map.weight() * map.sign();
    of.dot[r] = has_row_sums(args) ? dot[r] * inverse : 0.f;
    if (lane_id() % 4 == 0) dots[row] = of.dot[r];
  }
  add_to_total<G>(by_weight);
  return of;
}

/// z = the sums of keys' features that each row sees: those before the chunk, and in it by a
/// product with ones. Once products are finished.
template <typename G>
__device__ __forceinline__ void begin_key_sums(Block (&z)[kTiles], int map) {
  using M = Memory<G>;
  const float* sums = shared_at<float>(M::kKeySums) + map * G::kDim + lane_id() % 4 * 2;
#pragma unroll
  for (int n = 0; n < 2 * kTiles; ++n) {
    const float2 both = *reinterpret_cast<const float2*>(sums + n * 8);
    float(&c)[4] = z[n / 2][n % 2];
    c[0] = c[2] = both.x, c[1] = c[3] = both.y;
  }
  begin_rows<G>(z, M::kTriangle, M::kKeyFeatures + map * G::kArea);
}

/// dq += the band's part.
template <typename G>
__device__ __forceinline__ void add_near_dq(Block (&dq)[kTiles], const Walk<G>& walk,
                                            const Loader<G>& load) {
#pragma unroll
  for (int k = 0; k < kMostGroups; ++k) {
    const uint4 all = *walk.near_place(walk.tile, kScoreGradients, k);
    const Fragment gradients = turned(Fragment{{all.x, all.y, all.z, all.w}});
    add_columns<G>(dq, gradients, load, walk.row_tile(kK, walk.tile - k), 0);
  }
}

/// One chunk.
template <typename G>
__device__ __forceinline__ void query_step(const Walk<G>& walk, const Loader<G>& load,
                                           const Map<G>& map, DotSums<G>& sums) {
  using M = Memory<G>;
  using Role = Groups<G>;
  const int thread = thread_anew() % kGroupThreads;
  const int of_map = map.index * G::kArea;
  const int features = M::kKeyFeatures + of_map,
            plain = M::kPlainFeatures + of_map + walk.tile * G::kTile;
  make_query_features<G, true>(
      walk.args, map, walk.area(kQ), M::kPlainFeatures + of_map, M::kQueryFeatures + of_map,
      walk.live(walk.chunk), thread,
      [&](int tile, int row) { return walk.numbers(1 + map.index)[tile * kBlockDim + row]; });
  sums.publish(map.index, walk.tile);
  show_to_warpgroup();
  arrive_at_barrier(kFeaturesForValues, Role::kThreads);
  Block u[kTiles];
  // What rounding leaves off counts too: weights' gradients are long sums of terms of either sign.
  Fragment g[kTiles], rest[kTiles];
  {
    Block c[kTiles];  // grad_out v^T
    begin_columns<false>(c, walk.area(kGradOut), walk.area(kV));
    named_barrier(kFeaturesMade, (G::kMaps + 1) * kGroupThreads);
    finish_products(c);
    seen_scores<false>(g, walk.tile, [&](int tile) { return rounded(c[tile]); });
    seen_scores<false>(rest, walk.tile,
                       [&](int tile) { return rounded_rest(c[tile], rounded(c[tile])); });
  }
  map.event().wait(walk.chunk & 1);
  begin_columns<false>(u, walk.area(kGradOut), M::kBefore + of_map);
  begin_rows<G>(u, g, features);
  begin_rows<G>(u, rest, features);
  finish_products(u);
  const RowFactors rows = row_factors(u, walk, load, map, plain);
  arrive_at_barrier(kDotsMade, (G::kMaps + 1) * kGroupThreads);
  // Not before the dots, for which others wait.
  if (walk.goes_on()) begin_numbers_of(walk, -1, map.index, thread);
  Block z[kTiles];
  begin_key_sums<G>(z, map.index);
  named_barrier(kAmongQueries + map.index, kGroupThreads);
  sums.add(walk, load, map.index);
  finish_products(z);
  if (thread == 0 && walk.goes_on()) begin_state(walk, walk.chunk - 1, map);
#pragma unroll
  for (int b = 0; b < kTiles; ++b) {
#pragma unroll
    for (int i = 0; i < 8; ++i) u[b][i / 4][i % 4] -= rows.dot[i % 4 / 2] * z[b][i / 4][i % 4];
    make_input_gradient(u[b], load.left(plain, b), rows.factor);
  }
  if (map.index == G::kMaps - 1 && walk.args.has_near) {
    named_barrier(kNearForQueries, 2 * kGroupThreads);
    add_near_dq(u, walk, load);
  }
  if constexpr (G::kMaps == 1) {
    write_rows(walk, load, kDq, u, plain);
  } else {
    // Either map's warp adds up and writes one half of the rows.
    const auto write_half = [&](auto mine, auto others) {
      __syncwarp();
      others.put(plain, u);
      named_barrier(kPartOfQueries, 2 * kGroupThreads);
      mine.add_to(u, plain + (map.index == 0 ? G::kArea : -G::kArea));
      mine.put(plain, u);
      begin_to_write(walk, kDq, plain, map.index * rows_of_dq(G::kMaps), rows_of_dq(G::kMaps));
    };
    using First = HalfRows<G, 0>;
    using Second = HalfRows<G, 1>;
    if (map.index == 0)
      write_half(First(), Second());
    else
      write_half(Second(), First());
  }
  await_stores_read();  // where the next features come
}

}  // namespace fmmformer::cuda::chunks::both_sides
