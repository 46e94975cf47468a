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
  const int64_t entry = (int64_t(at.pair) * made.maps + map) * G::kDim;
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

/// Feature rows of a tile's keys, zeros for dead ones.
template <typename G, typename Map>
__device__ __forceinline__ void key_features(const Sequence<G>& at, Map map, int tile,
                                             const Inputs<G>& k, Fragments<G>& x) {
  k.features(map, x);
  strips::keep_live(x, at.live(tile));
}

/// out[tile] += weight * far fields; writes normalisers, [maps][length]. Map by map, which leaves
/// registers for a third block. Barriers inside.
template <typename G>
__device__ __forceinline__ void far_forward(const Sequence<G>& at, float* normalisers,
                                            Blocks<G> (&out)[kTiles]) {
  const SweepArgs& args = at.args;
  const States<G> states(at);
  Fragments<G> x[G::kMaps][kTiles];
  each_map<G>([&](auto map) {
    const int l = index_of(map);
    OwnSums<G> sums;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      Fragments<G> turned_x, values;
      key_features(at, map, tile, Inputs<G>(at.rows(kKeys, tile)), x[l][tile]);
      strips::turn(turned_x, x[l][tile]);
      load_turned<G>(values, at.rows(kValues, tile));
      sums.add(tile == 0, values, turned_x);
      sums.add_rows(tile == 0, turned_x, {{kOnes, kOnes}});
    }
    states.store(l, sums);
  });
  states.template scan<Scan::kBefore>(at.warps, [&](int i, const auto& sum) {
    if (args.made.sums) store_made(at, i, sum);
  });
  each_map<G>([&](auto map) {
    const int l = index_of(map);
    float z[1][4];
    states.key_sums(l).load(0, z);
    const Fragment state = states.operand(l);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      Fragments<G> f;
      Inputs<G>(at.rows(kQueries, tile)).features(map, f);
      RowSums<G> row_sums;
      row_sums.add(f[0], z[0]);
      Blocks<G> sum;
      begin_product(sum[0], f[0], state);
#pragma unroll
      for (int other = 0; other <= tile; ++other) {
        Block scores;
        make_products<G>(scores, f, x[l][other]);
        Fragment inner = rounded(scores);
        if (other == tile) cut_at_diagonal</*kBefore=*/false>(inner);
        row_sums.add(inner);
        add_rows_of<G>(sum, inner, at.rows(kValues, other));
      }
      float factor[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float norm = at.row_sums() ? row_sums.of(r) + args.eps : args.fixed_norm;
        const int token = at.first_token(tile) + row_of(2 * r);
        if (at.row_sums() && lane_id() % 4 == 0 && token < args.length)
          normalisers[int64_t(l) * args.length + token] = norm;
        factor[r] = args.far_scale * reciprocal(norm);
      }
      strips::add_field<G>(out[tile], sum, factor, at.weights(), l);
    }
  });
}

}  // namespace fmmformer::cuda::whole
