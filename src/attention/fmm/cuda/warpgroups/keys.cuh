// SPDX-License-Identifier: Apache-2.0
// The rows of the sweep for dk, which walks backwards, from the scores' gradients g = v grad_out^T.
// Rows are keys, columns queries. The formulas are those of docs/math.md.
#pragma once

#include "attention/fmm/cuda/warpgroups/probabilities.cuh"

namespace fmmformer::cuda::warpgroups {

/// From probabilities p, of which some are `kept`: the gradients of scores in the near field, times
/// near_scale.
template <typename G>
__device__ __forceinline__ void near_key(NearFragments& near, const NearBlocks& p, const Scores& g,
                                         uint32_t kept, const Rows<G, Sweep::kKeys>& rows) {
  const float factor = rows.args.near_scale * rows.weight(G::kMaps);
  NearBlocks gradient;
  rows.gather(gradient, g);
  rows.drop(gradient, kept);
#pragma unroll
  for (int k = 0; k < chunks::kMostGroups; ++k) {
    float2 dots[2];
    rows.column_numbers(dots, chunks::kDot<G> + G::kMaps, rows.tile + k);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float dot = i % 2 ? dots[i / 4].y : dots[i / 4].x;
      float& element = gradient[k][i / 4][i % 4];
      element = p[k][i / 4][i % 4] * (factor * element - dot);
    }
    near[k] = rounded(gradient[k]);
  }
}

/// A map's (g - dot), from the diagonal on.
template <typename G>
__device__ __forceinline__ void make_differences(Fragment (&m)[kTiles], const Block (&g)[kTiles],
                                                 const Rows<G, Sweep::kKeys>& rows, int map) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    float2 dots[2];
    rows.column_numbers(dots, chunks::kDot<G> + map, t);
    Block difference;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float here = g[t][i / 4][i % 4] - (i % 2 ? dots[i / 4].y : dots[i / 4].x);
      difference[i / 4][i % 4] = rows.far_bits >> (8 * t + i) & 1 ? here : 0.f;
    }
    m[t] = rounded(difference);
  }
}
/// Begins u = (own rows of v) T^T + (g - dot) f(q): a map's gradient with respect to f, but for the
/// sums after the chunk.
template <typename G>
__device__ __forceinline__ void begin_far_key(Block (&u)[G::kBlocks], const Fragment (&m)[kTiles],
                                              const Rows<G, Sweep::kKeys>& rows, int map) {
  using M = Memory<G, Sweep::kKeys>;
  begin_warpgroup_products();
#pragma unroll
  for (int s = 0; s < G::kBlocks; ++s)
    product<Turned::kNo, Turned::kYes>(
        u, rows_operand(rows.own(1), s),
        state_columns_operand<G>(M::kState + map * G::kStateOfMap, s), s > 0);
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
    product<Turned::kYes>(u, m[t], columns_operand(M::kFeatures + map * G::kTile, t), true);
  commit_products();
}
/// u becomes the map's part of dk, from what begin_far_key began.
template <typename G, int kMap>
__device__ __forceinline__ void finish_far_key(Block (&u)[G::kBlocks],
                                               const Rows<G, Sweep::kKeys>& rows) {
  const float* sums =
      Memory<G, Sweep::kKeys>::key_sums(rows.step) + kMap * G::kDim + lane_id() % 4 * 2;
  const float ones[2] = {1.f, 1.f};
  wait_for_products<0>();
  arrived(u);
  if (kMap + 1 == G::kMaps) {  // the features and v have served
    rows.events.say(kSecondEmpty), rows.events.say(kFeaturesEmpty);
  }
#pragma unroll
  for (int b = 0; b < G::kBlocks; ++b) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 y = *reinterpret_cast<const float2*>(sums + (2 * b + n) * 8);
      float(&c)[4] = u[b][n];
      c[0] -= y.x, c[1] -= y.y, c[2] -= y.x, c[3] -= y.y;
    }
    to_input_gradient<kMap>(u[b], rows.template features<kMap>(b), ones);
  }
}

template <typename G>
__device__ __forceinline__ void key_rows(const Rows<G, Sweep::kKeys>& rows,
                                         const typename Rows<G, Sweep::kKeys>::Band& band) {
  NearFragments near;
  Fragment m[kTiles];
  Scores g;
  {
    NearBlocks p;
    const uint32_t kept = probabilities_and_gradients(p, g, rows, band);
    near_key(near, p, g, kept, rows);
  }
  make_differences(m, g.main, rows, 0);
  rows.events.await(kFeaturesFull, rows.step);
  rows.events.await(kStateFull, rows.step);
  Block dk[G::kBlocks];
  begin_far_key(dk, m, rows, 0);
  finish_far_key<G, 0>(dk, rows);
  {
    Fragment operands[kTiles + chunks::kHalo];
    rows.begin_near_sum(dk, operands, near, 0, /*add=*/true);
    wait_for_products<0>();
    arrived(dk);
  }
  rows.events.say(kHaloEmpty);
  if constexpr (G::kMaps > 1) {
    make_differences(m, g.main, rows, 1);
    rows.put_aside(dk);
    begin_far_key(dk, m, rows, 1);
    finish_far_key<G, 1>(dk, rows);
    rows.add_aside(dk);
  }
  rows.events.say(kStateEmpty);
  rows.write(rows.args.dk, dk, rows.own(0));
}

}  // namespace fmmformer::cuda::warpgroups
