// SPDX-License-Identifier: Apache-2.0
// The rows of the key sweep, which walks backwards: dk, from the scores' gradients g = v grad_out^T,
// then dv. Rows are keys, columns queries. The formulas are those of docs/math.md.
#pragma once

#include "attention/fmm/cuda/warpgroups/forward.cuh"

namespace fmmformer::cuda::warpgroups {

/// Fragments of weight * probabilities wait in shared memory, each lane's its own, until dv is made:
/// registers do not hold them.
template <typename G>
__device__ __forceinline__ uint4* stash_of(int i) {
  return shared_at<uint4>(Memory<G, Sweep::kKeys>::kStash) + i * kGroupThreads +
         threadIdx.x % kGroupThreads;
}

/// From scores x: weight * probabilities to the stash, and `near` becomes the gradients of scores
/// in the near field, times near_scale.
template <typename G>
__device__ __forceinline__ void near_key(ScoreFragments& near, Scores& x, Scores& g,
                                         const Rows<G, Sweep::kKeys>& rows,
                                         const chunks::Band<G, Sweep::kKeys>& band, float weight) {
  const float factor = rows.args.near_scale * weight;
  int place = 0;  // of the tile in the stash: in the order of tiles
  rows.each_near_tile(
      x, g, band.groups,
      [&](Block& c, Block& gradient, int index, int group) {
        const uint32_t inside = band.inside(group, rows.live_bits(index));
        float2 log_sums[2], dots[2];
        rows.column_numbers(log_sums, chunks::kLogSumExp, index);
        rows.column_numbers(dots, chunks::kDot<G> + G::kMaps, index);
        Block weighted;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float log_sum = i % 2 ? log_sums[i / 4].y : log_sums[i / 4].x;
          float& element = c[i / 4][i % 4];
          element = inside >> i & 1 ? element : -INFINITY;
          element = Bf16::exp2(element * band.scale - log_sum * kLog2E);
          weighted[i / 4][i % 4] = weight * element;
          element *= factor * gradient[i / 4][i % 4] - (i % 2 ? dots[i / 4].y : dots[i / 4].x);
        }
        const Fragment f = rounded(weighted);
        *stash_of<G>(place++) = make_uint4(f.r[0], f.r[1], f.r[2], f.r[3]);
      },
      [&](Block& c) {
        clear(c);
        *stash_of<G>(place++) = make_uint4(0, 0, 0, 0);
      });
  near = rounded_scores<G>(x);
}
template <typename G>
__device__ __forceinline__ void load_stash(ScoreFragments& near) {
#pragma unroll
  for (int i = 0; i < kTiles + chunks::kHalo; ++i) {
    const uint4 f = *stash_of<G>(i);
    (i < kTiles ? near.main[i & 3] : near.halo[i & 1]) = {{f.x, f.y, f.z, f.w}};
  }
}

/// Begins u = (own rows of v) T^T + (g - dot) f(q), from the diagonal on: a map's gradient with
/// respect to f, but for the sums after the chunk.
template <typename G, int kMap>
__device__ __forceinline__ void begin_far_key(Block (&u)[G::kBlocks], Fragment (&m)[kTiles],
                                              const Block (&g)[kTiles],
                                              const Rows<G, Sweep::kKeys>& rows) {
  using M = Memory<G, Sweep::kKeys>;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    float2 dots[2];
    rows.column_numbers(dots, chunks::kDot<G> + kMap, t);
    Block difference;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float here = g[t][i / 4][i % 4] - (i % 2 ? dots[i / 4].y : dots[i / 4].x);
      difference[i / 4][i % 4] = rows.is_far_tile(t) ? here : 0.f;
    }
    m[t] = rounded(difference);
    if (t == rows.tile) cut_at_diagonal</*kBefore=*/true>(m[t]);
  }
  begin_products();
#pragma unroll
  for (int s = 0; s < G::kBlocks; ++s)
    product<Turned::kNo, Turned::kYes>(
        u, rows_operand(rows.own(1), s),
        state_columns_operand<G>(M::kState + kMap * G::kStateOfMap, s), s > 0);
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
    product<Turned::kYes>(u, m[t], columns_operand(M::kFeatures + kMap * G::kTile, t), true);
  commit_products();
}
/// dk += the map's part, from what begin_far_key has begun.
template <typename G, int kMap>
__device__ __forceinline__ void add_far_key(Block (&dk)[G::kBlocks], Block (&u)[G::kBlocks],
                                            const Rows<G, Sweep::kKeys>& rows) {
  const float* sums = shared_at<float>(Memory<G, Sweep::kKeys>::kKeySums) + kMap * G::kDim +
                      lane_id() % 4 * 2;
  const float ones[2] = {1.f, 1.f};
#pragma unroll
  for (int b = 0; b < G::kBlocks; ++b) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 y = *reinterpret_cast<const float2*>(sums + (2 * b + n) * 8);
      float(&c)[4] = u[b][n];
      c[0] -= y.x, c[1] -= y.y, c[2] -= y.x, c[3] -= y.y;
    }
    add_input_gradient<kMap>(dk[b], u[b], rows.template features<kMap>(b), ones);
  }
}

template <typename G>
__device__ __forceinline__ void gradient_of_keys(const Rows<G, Sweep::kKeys>& rows,
                                                 const chunks::Band<G, Sweep::kKeys>& band,
                                                 float near_weight) {
  Scores g;
  ScoreFragments near;
  rows.begin_scores(g, 1);
  {
    Scores x;
    rows.begin_scores(x, 0);
    wait_for_products<0>();
    g.wait(), x.wait();
    near_key(near, x, g, rows, band, near_weight);
  }
  Block dk[G::kBlocks];
  begin_products();
  rows.begin_sum(dk, near, 0, /*add=*/false);
  commit_products();
  rows.events.await(kFeaturesFull, rows.step);
  rows.events.await(kStateFull, rows.step);
  each_map<G>([&](auto map) {
    constexpr int kMap = decltype(map)::value;
    Block u[G::kBlocks];
    Fragment m[kTiles];
    begin_far_key<G, kMap>(u, m, g.main, rows);
    wait_for_products<0>();
    arrived(u);
    if (kMap == 0) arrived(dk);
    add_far_key<G, kMap>(dk, u, rows);
  });
  rows.write(rows.args.dk, dk, rows.own(1));
}

template <typename G>
__device__ __forceinline__ void gradient_of_values(const Rows<G, Sweep::kKeys>& rows) {
  using M = Memory<G, Sweep::kKeys>;
  const auto& events = rows.events;
  Fragment f[G::kMaps][G::kBlocks];
  rows.make_features(f);
  Block a[kTiles], dv[G::kBlocks];
  begin_products();
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l) {
#pragma unroll
    for (int b = 0; b < G::kBlocks; ++b)
      product<Turned::kNo>(a, f[l][b], rows_operand(M::kFeatures + l * G::kTile, b), l + b > 0);
  }
  commit_products();
  {
    ScoreFragments near;
    load_stash<G>(near);
    begin_products();
    rows.begin_sum(dv, near, 1, /*add=*/false);
    commit_products();
    wait_for_products<0>();
    arrived(a), arrived(dv);
  }
  events.say(kHaloEmpty);
  Fragment rounded_a[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    rounded_a[t] = rounded(a[t]);
    if (t == rows.tile) cut_at_diagonal</*kBefore=*/true>(rounded_a[t]);
    if (!rows.is_far_tile(t)) rounded_a[t] = {{0, 0, 0, 0}};
  }
  begin_products();
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l) {
#pragma unroll
    for (int b = 0; b < G::kBlocks; ++b)
      product<Turned::kNo>(dv, f[l][b], state_rows_operand<G>(M::kState + l * G::kStateOfMap, b),
                           true);
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
    product<Turned::kYes>(dv, rounded_a[t], columns_operand(rows.band(1), t), true);
  commit_products();
  wait_for_products<0>();
  arrived(dv);
  events.say(kStateEmpty), events.say(kFeaturesEmpty);
  rows.write(rows.args.dv, dv, rows.own(0));
}

}  // namespace fmmformer::cuda::warpgroups
