// SPDX-License-Identifier: Apache-2.0
// The rows of the forward sweep. The formulas are those of docs/math.md.
#pragma once

#include "attention/fmm/cuda/chunks/far.cuh"
#include "attention/fmm/cuda/warpgroups/rows.cuh"

namespace fmmformer::cuda::warpgroups {

/// Scores become weight * softmax inside the band, as dropout leaves it, and 0 outside; writes
/// log_sum_exp.
template <typename G>
__device__ __forceinline__ void softmax(NearFragments& near, const Scores& x,
                                        const Rows<G, Sweep::kForward>& rows,
                                        const typename Rows<G, Sweep::kForward>::Band& band,
                                        uint32_t kept) {
  constexpr int kElements = 8 * chunks::kMostGroups;
  float peak[2] = {-INFINITY, -INFINITY}, total[2] = {0.f, 0.f}, base[2], factor[2];
  NearBlocks p;
  rows.gather(p, x);
  const uint32_t inside = rows.near_bits(band);
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    float& score = p[i / 8][i / 4 % 2][i % 4];
    score = inside >> i & 1 ? score : -INFINITY;
    peak[i % 4 / 2] = fmaxf(peak[i % 4 / 2], score);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    peak[r] = quad_max(peak[r]);
    base[r] = peak[r] == -INFINITY ? 0.f : peak[r] * band.scale;
  }
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    float& element = p[i / 8][i / 4 % 2][i % 4];
    element = Bf16::exp2(element * band.scale - base[i % 4 / 2]);
    total[i % 4 / 2] += element;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    total[r] = quad_sum(total[r]);
    factor[r] = total[r] > 0.f ? __fdividef(rows.weight(G::kMaps), total[r]) : 0.f;
  }
#pragma unroll
  for (int i = 0; i < kElements; ++i) p[i / 8][i / 4 % 2][i % 4] *= factor[i % 4 / 2];
  rows.drop(p, kept);
#pragma unroll
  for (int k = 0; k < chunks::kMostGroups; ++k) near[k] = rounded(p[k]);
  if (!rows.args.has_near) return;
  float* log_sum_exp = rows.args.log_sum_exp + rows.row_index(rows.args, 1, 0);
  rows.each_row_once([&](int r, int token) {
    // Infinity for rows that saw nothing or are dead: every later exp(score - log_sum_exp) is 0.
    const bool seen = rows.is_live(r) && total[r] > 0.f;
    log_sum_exp[token] = seen ? (base[r] + __log2f(total[r])) * (1.f / kLog2E) : INFINITY;
  });
}

/// a += weight * far_scale / norm * s inside the chunk (first map: a = ...); `factor` becomes what
/// the rows were multiplied by. `before`: <f(q), key sums before the chunk>, as two parts. Writes
/// normalisers.
template <typename G>
__device__ __forceinline__ void add_scores(Block (&a)[kTiles], Block (&s)[kTiles],
                                           float (&factor)[2], const float (&before)[4],
                                           const Rows<G, Sweep::kForward>& rows, int map) {
  const SweepArgs& args = rows.args;
  float sum[2] = {0.f, 0.f}, norm[2];
  rows.cut(s);
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      sum[r] += (s[t][0][2 * r] + s[t][0][2 * r + 1]) + (s[t][1][2 * r] + s[t][1][2 * r + 1]);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    norm[r] = chunks::has_row_sums(args)
                  ? quad_sum(sum[r]) + before[2 * r] + before[2 * r + 1] + args.eps
                  : args.fixed_norm;
    factor[r] = __fdividef(rows.weight(map) * args.far_scale, norm[r]);
  }
#pragma unroll
  for (int i = 0; i < 8 * kTiles; ++i) {
    float& to = a[i / 8][i / 4 % 2][i % 4];
    const float score = factor[i % 4 / 2] * s[i / 8][i / 4 % 2][i % 4];
    to = map == 0 ? score : to + score;
  }
  if (!chunks::has_row_sums(args)) return;
  float* normalisers = args.normalisers + rows.row_index(args, G::kMaps, map);
  rows.each_row_once([&](int r, int token) { normalisers[token] = norm[r]; });
}

/// <f(q), key sums before the chunk>, as two parts for rows g and g + 8.
template <typename G, int kMap>
__device__ __forceinline__ void multiply_key_sums(float (&before)[4],
                                                  const Rows<G, Sweep::kForward>& rows) {
  using M = Memory<G, Sweep::kForward>;
  float sums[2][4] = {};  // two: half as many wait for one another
#pragma unroll
  for (int b = 0; b < G::kBlocks; ++b)
    Bf16::multiply(sums[b % 2], rows.template features<kMap>(b),
                   chunks::KeySumOperands<G>::load(M::kKeySums, kMap, b));
#pragma unroll
  for (int i = 0; i < 4; ++i) before[i] = sums[0][i] + sums[1][i];
}
/// sum += factor c, with factors of rows g and g + 8.
template <int kCount>
__device__ __forceinline__ void add_rows(Block (&sum)[kCount], const Block (&c)[kCount],
                                         const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < 8 * kCount; ++i)
    sum[i / 8][i / 4 % 2][i % 4] += factor[i % 4 / 2] * c[i / 8][i / 4 % 2][i % 4];
}

/// One chunk.
template <typename G>
__device__ __forceinline__ void forward_rows(const Rows<G, Sweep::kForward>& rows,
                                             const typename Rows<G, Sweep::kForward>::Band& band) {
  const auto& events = rows.events;
  float factor[G::kMaps][2];
  NearFragments near;
  Fragment far[kTiles];
  {
    Scores x;
    rows.begin_scores(x, 0);
    const uint32_t kept = rows.kept_bits(band);
    wait_for_products<0>();
    x.wait();
    softmax(near, x, rows, band, kept);
  }
  {
    Block s[G::kMaps][kTiles], a[kTiles];
    float before[G::kMaps][4];
    events.await(kFeaturesFull, rows.step);
    events.await(kOwnFull, rows.step);
    each_map<G>([&](auto map) {
      constexpr int kMap = decltype(map)::value;
      multiply_key_sums<G, kMap>(before[kMap], rows);
    });
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l) rows.begin_far_scores(s[l], l, /*add=*/false);
    wait_for_products<0>();
    events.say(kFeaturesEmpty);
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l) {
      arrived(s[l]);
      add_scores(a, s[l], factor[l], before[l], rows, l);
    }
    round_tiles(far, a);
  }
  Block out[G::kBlocks], of_map[G::kBlocks];
  {
    Fragment operands[kTiles + chunks::kHalo];
    rows.begin_near_sum(out, operands, near, 1, /*add=*/false);
    events.await(kStateFull, rows.step);
    wait_for_products<0>();
    arrived(out);
    events.say(kHaloEmpty);
  }
  rows.begin_far_sum(out, far, 1);
  rows.begin_state_sum(of_map, 0, /*add=*/false);
  wait_for_products<0>();
  arrived(out), arrived(of_map);
  add_rows(out, of_map, factor[0]);
  if constexpr (G::kMaps > 1) {
    rows.begin_state_sum(of_map, 1, /*add=*/false);
    wait_for_products<0>();
    arrived(of_map);
    add_rows(out, of_map, factor[1]);
  }
  events.say(kStateEmpty);
  rows.write(rows.args.out, out, rows.own(0));
}

}  // namespace fmmformer::cuda::warpgroups
