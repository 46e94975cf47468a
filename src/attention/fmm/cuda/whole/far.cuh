// SPDX-License-Identifier: Apache-2.0
// Far fields of a warp's 32 tokens, forward. The formulas are those of docs/math.md; S is the state
// before the warp's tokens.
#pragma once

#include "attention/fmm/cuda/whole/states.cuh"

namespace fmmformer::cuda::whole {

/// The state after the last token goes to args.made: numbers from i on.
template <typename G>
__device__ void store_made(const Sequence<G>& at, int i, const float (&sum)[4]) {
  const cuda::States& made = at.args.made;
  const int map = at.args.first_map + i / G::kStateSize, in_map = i % G::kStateSize;
  const int64_t entry = (int64_t(at.pair()) * made.maps + map) * G::kDim;
  const int lane = in_map / 4 % kWarpSize, half = in_map / (4 * kWarpSize);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int value = lane / 4 + j / 2 * 8, feature = half * 8 + lane % 4 * 2 + j % 2;
    if (in_map >= G::kImage)
      made.key_sums[entry + in_map - G::kImage + j] = sum[j];
    else
      made.sums[(entry + feature) * made.row_length + value] = sum[j];
  }
}

/// Begins to copy a sequence's keys and values; returns which tokens are live.
template <typename G>
__device__ __forceinline__ uint32_t copy_keys(const Sequence<G>& at) {
  const uint32_t live = at.find_live();
  at.copy(kKeys, at.args.k, live), at.copy(kValues, at.args.v, live);
  return live;
}
/// ... its other rows, and what forward left of them.
template <typename G>
__device__ __forceinline__ void copy_queries(const Sequence<G>& at, uint32_t live) {
  at.copy(kQueries, at.args.q, live);
  if (G::kBackward) at.copy(kGradients, at.args.grad_out, live), at.copy_numbers();
}
/// ... all of the block's next sequence. All warps are done with the one before this.
template <typename G>
__device__ __forceinline__ void copy_next(const Sequence<G>& at) {
  if (!at.has_next()) return;
  Sequence<G> next = at;
  next.advance();
  copy_queries(next, copy_keys(next));
}
/// The warp's own copies have come.
__device__ __forceinline__ void await_copies() {
  wait_for_copies();
  __syncwarp();
}

/// Feature rows of a tile's keys, zeros for dead ones.
template <typename G, typename Map>
__device__ __forceinline__ void key_features(const Sequence<G>& at, Map map, int tile,
                                             const Inputs<G>& k, Fragments<G>& x) {
  k.features(map, x);
  strips::keep_live(x, at.live(tile));
}

/// One map's far field of a tile's queries, from the state before the warp and its keys x; norms of
/// rows g and g + 8.
template <typename G>
__device__ __forceinline__ void far_field(const Sequence<G>& at, const States<G>& states, int map,
                                          int tile, const Fragments<G>& f,
                                          const Fragments<G> (&x)[kTiles], Blocks<G>& sum,
                                          float (&norm)[2]) {
  float z[1][4];
  states.key_sums(map).load(0, z);
  RowSums<G> row_sums;
  row_sums.add(f[0], z[0]);
  begin_product(sum[0], f[0], states.operand(map));
#pragma unroll
  for (int other = 0; other <= tile; ++other) {
    Block scores;
    make_products<G>(scores, f, x[other]);
    Fragment inner = rounded(scores);
    if (other == tile) cut_at_diagonal</*kBefore=*/false>(inner);
    row_sums.add(inner);
    add_rows_of<G>(sum, inner, at.rows(kValues, other));
  }
#pragma unroll
  for (int r = 0; r < 2; ++r)
    norm[r] = at.row_sums() ? row_sums.of(r) + at.args.eps : at.args.fixed_norm;
}

/// Feature rows of a warp's keys.
template <typename G>
using KeyFeatures = Fragments<G>[G::kMaps][kTiles];

/// Makes x, and the states before every warp's keys. Tile by tile, so that all maps of one share an
/// exponential. Barriers inside.
template <typename G>
__device__ __forceinline__ void sum_before(const Sequence<G>& at, const States<G>& states,
                                           KeyFeatures<G>& x) {
  OwnSums<G> sums[G::kMaps];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const Inputs<G> k(at.rows(kKeys, tile));
    Fragments<G> values;
    load_turned<G>(values, at.rows(kValues, tile));
    each_map<G>([&](auto map) {
      const int l = index_of(map);
      Fragments<G> turned_x;
      key_features(at, map, tile, k, x[l][tile]);
      strips::turn(turned_x, x[l][tile]);
      sums[l].add(tile == 0, values, turned_x);
      sums[l].add_rows(tile == 0, turned_x, {{kOnes, kOnes}});
    });
  }
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l) states.store(l, sums[l]);
  wait_for_copies();  // of rows that nobody has needed so far
  __syncthreads();
  states.template scan<Scan::kBefore>(at.warps, [&](int i, const auto& sum) {
    if (at.args.made.sums) store_made(at, i, sum);
  });
}

/// out += weight * far fields of a tile's queries; writes normalisers, [maps][length].
template <typename G>
__device__ __forceinline__ void far_forward(const Sequence<G>& at, const States<G>& states,
                                            const KeyFeatures<G>& x, int tile, float* normalisers,
                                            Blocks<G>& out) {
  const SweepArgs& args = at.args;
  const Inputs<G> q(at.rows(kQueries, tile));
  each_map<G>([&](auto map) {
    const int l = index_of(map);
    Fragments<G> f;
    q.features(map, f);
    Blocks<G> sum;
    float norm[2], factor[2];
    far_field(at, states, l, tile, f, x[l], sum, norm);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int token = at.first_token(tile) + row_of(2 * r);
      if (at.row_sums() && lane_id() % 4 == 0 && token < args.length)
        normalisers[int64_t(l) * args.length + token] = norm[r];
      factor[r] = args.far_scale * reciprocal(norm[r]);
    }
    strips::add_field<G>(out, sum, factor, at.weights(), l);
  });
}

}  // namespace fmmformer::cuda::whole
