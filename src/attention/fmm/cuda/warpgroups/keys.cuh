// SPDX-License-Identifier: Apache-2.0
// The rows of the sweep for dk, which walks backwards, from the scores' gradients g = v grad_out^T.
// Rows are keys, columns queries. The formulas are those of docs/math.md.
#pragma once

#include "attention/fmm/cuda/warpgroups/forward.cuh"

namespace fmmformer::cuda::warpgroups {

/// Gradients of the near field's scores wait in shared memory, each lane's its own, until dk has use
/// for them: registers do not hold them. For every group of the band.
template <typename G>
__device__ __forceinline__ uint4* stash_of(int group) {
  return shared_at<uint4>(Memory<G, Sweep::kKeys>::kStash) + group * kGroupThreads +
         threadIdx.x % kGroupThreads;
}
template <typename G>
__device__ __forceinline__ void load_stash(ScoreFragments& a, const Rows<G, Sweep::kKeys>& rows,
                                           int groups) {
#pragma unroll
  for (int i = 0; i < kTiles + chunks::kHalo; ++i) {
    const int group = i - rows.tile;
    uint4 f = make_uint4(0, 0, 0, 0);
    if (group >= 0 && group < groups) f = *stash_of<G>(group);
    a.of(i) = {{f.x, f.y, f.z, f.w}};
  }
}

/// From scores x to the stash: their gradients in the near field, times near_scale.
template <typename G>
__device__ __forceinline__ void near_key(Scores& x, Scores& g, const Rows<G, Sweep::kKeys>& rows,
                                         const typename Rows<G, Sweep::kKeys>::Band& band, float weight) {
  const float factor = rows.args.near_scale * weight;
  rows.each_near_tile(
      x, g, band.groups,
      [&](Block& c, Block& gradient, int index, int group) {
        const uint32_t inside = band.inside(group, rows.live_bits(index));
        float2 log_sums[2], dots[2];
        rows.column_numbers(log_sums, chunks::kLogSumExp, index);
        rows.column_numbers(dots, chunks::kDot<G> + G::kMaps, index);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float log_sum = i % 2 ? log_sums[i / 4].y : log_sums[i / 4].x;
          float& element = c[i / 4][i % 4];
          element = inside >> i & 1 ? element : -INFINITY;
          element = Bf16::exp2(element * band.scale - log_sum * kLog2E);
          element *= factor * gradient[i / 4][i % 4] - (i % 2 ? dots[i / 4].y : dots[i / 4].x);
        }
        const Fragment f = rounded(c);
        *stash_of<G>(group) = make_uint4(f.r[0], f.r[1], f.r[2], f.r[3]);
      },
      [](Block&, int) {});
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
      difference[i / 4][i % 4] = rows.is_far_tile(t) ? here : 0.f;
    }
    m[t] = rounded(difference);
    if (t == rows.tile) cut_at_diagonal</*kBefore=*/true>(m[t]);
  }
}
/// Begins u = (own rows of v) T^T + (g - dot) f(q): a map's gradient with respect to f, but for the
/// sums after the chunk.
template <typename G>
__device__ __forceinline__ void begin_far_key(Block (&u)[G::kBlocks], const Fragment (&m)[kTiles],
                                              const Rows<G, Sweep::kKeys>& rows, int map) {
  using M = Memory<G, Sweep::kKeys>;
  begin_products();
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
  const float* sums = shared_at<float>(Memory<G, Sweep::kKeys>::kKeySums) + kMap * G::kDim +
                      lane_id() % 4 * 2;
  const float ones[2] = {1.f, 1.f};
  wait_for_products<0>();
  arrived(u);
  // The state, the features and v have served.
  if (kMap + 1 == G::kMaps) rows.events.say(kStateEmpty), rows.events.say(kSecondEmpty);
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
                                                 const typename Rows<G, Sweep::kKeys>::Band& band,
                                                 float near_weight) {
  Fragment m[G::kMaps][kTiles];
  {
    Scores g, x;
    rows.begin_scores(g, 1);
    rows.begin_scores(x, 0);
    wait_for_products<0>();
    g.wait(), x.wait();
    near_key(x, g, rows, band, near_weight);
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l) make_differences(m[l], g.main, rows, l);
  }
  rows.events.await(kFeaturesFull, rows.step);
  rows.events.await(kStateFull, rows.step);
  Block dk[G::kBlocks];
  begin_far_key(dk, m[0], rows, 0);
  finish_far_key<G, 0>(dk, rows);
  // The near field's part meets the first map's, not before: fewer registers are in use then.
  ScoreFragments near;
  load_stash(near, rows, band.groups);
  begin_products();
  rows.begin_sum(dk, near, 0, /*add=*/true);
  commit_products();
  wait_for_products<0>();
  arrived(dk);
  rows.events.say(kHaloEmpty);
  if constexpr (G::kMaps > 1) {
    Block u[G::kBlocks];
    begin_far_key(u, m[1], rows, 1);
    finish_far_key<G, 1>(u, rows);
#pragma unroll
    for (int b = 0; b < G::kBlocks; ++b) add(dk[b], u[b]);
  }
  rows.events.say(kFeaturesEmpty);  // with the sums
  rows.write(rows.args.dk, dk, rows.own(0));
}

}  // namespace fmmformer::cuda::warpgroups
