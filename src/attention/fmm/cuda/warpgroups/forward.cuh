// SPDX-License-Identifier: Apache-2.0
// The rows of the forward sweep. The formulas are those of docs/math.md.
#pragma once

#include "attention/fmm/cuda/chunks/far.cuh"
#include "attention/fmm/cuda/warpgroups/rows.cuh"

namespace fmmformer::cuda::warpgroups {

/// Scores become weight * softmax inside the band and 0 outside; writes log_sum_exp.
template <typename G>
__device__ __forceinline__ void softmax(Scores& x, const Rows<G, Sweep::kForward>& rows,
                                        const chunks::Band<G, Sweep::kForward>& band,
                                        float weight) {
  float peak[2] = {-INFINITY, -INFINITY}, total[2] = {0.f, 0.f}, base[2], factor[2];
  const auto nothing = [](Block&) {};
  rows.each_near_tile(
      x, band.groups,
      [&](Block& c, int index, int group) {
        const uint32_t inside = band.inside(group, rows.live_bits(index));
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float& score = c[i / 4][i % 4];
          score = inside >> i & 1 ? score : -INFINITY;
          peak[i % 4 / 2] = fmaxf(peak[i % 4 / 2], score);
        }
      },
      nothing);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    peak[r] = quad_max(peak[r]);
    base[r] = peak[r] == -INFINITY ? 0.f : peak[r] * band.scale;
  }
  rows.each_near_tile(
      x, band.groups,
      [&](Block& c, int, int) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float& element = c[i / 4][i % 4];
          element = Bf16::exp2(element * band.scale - base[i % 4 / 2]);
          total[i % 4 / 2] += element;
        }
      },
      [](Block& c) { clear(c); });
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    total[r] = quad_sum(total[r]);
    factor[r] = total[r] > 0.f ? __fdividef(weight, total[r]) : 0.f;
  }
  rows.each_near_tile(
      x, band.groups,
      [&](Block& c, int, int) {
#pragma unroll
        for (int i = 0; i < 8; ++i) c[i / 4][i % 4] *= factor[i % 4 / 2];
      },
      nothing);
  if (!rows.args.has_near) return;
  float* log_sum_exp = rows.args.log_sum_exp + rows.place.row_index(rows.args, 1, 0);
  rows.each_row_once([&](int r, int token) {
    // Infinity for rows that saw nothing or are dead: every later exp(score - log_sum_exp) is 0.
    const bool seen = rows.is_live(r) && total[r] > 0.f;
    log_sum_exp[token] = seen ? (base[r] + __log2f(total[r])) * (1.f / kLog2E) : INFINITY;
  });
}

/// a += weight * far_scale / norm * s inside the chunk; `factor` becomes what the rows were
/// multiplied by. `before`: <f(q), key sums before the chunk>, as two parts. Writes normalisers.
template <typename G>
__device__ __forceinline__ void add_scores(Scores& a, Block (&s)[kTiles], float (&factor)[2],
                                           const float (&before)[4],
                                           const Rows<G, Sweep::kForward>& rows, int map,
                                           float weight) {
  const SweepArgs& args = rows.args;
  float sum[2] = {0.f, 0.f}, norm[2];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    if (!rows.is_far_tile(t)) continue;
    if (t == rows.tile) cut_at_diagonal</*kBefore=*/false>(s[t]);
#pragma unroll
    for (int r = 0; r < 2; ++r)
      sum[r] += (s[t][0][2 * r] + s[t][0][2 * r + 1]) + (s[t][1][2 * r] + s[t][1][2 * r + 1]);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    norm[r] = chunks::has_row_sums(args)
                  ? quad_sum(sum[r]) + before[2 * r] + before[2 * r + 1] + args.eps
                  : args.fixed_norm;
    factor[r] = __fdividef(weight * args.far_scale, norm[r]);
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    if (!rows.is_far_tile(t)) continue;
#pragma unroll
    for (int i = 0; i < 8; ++i) a.main[t][i / 4][i % 4] += factor[i % 4 / 2] * s[t][i / 4][i % 4];
  }
  if (!chunks::has_row_sums(args)) return;
  float* normalisers = args.normalisers + rows.place.row_index(args, G::kMaps, map);
  rows.each_row_once([&](int r, int token) { normalisers[token] = norm[r]; });
}

template <typename G>
__device__ __forceinline__ ScoreFragments rounded_scores(const Scores& x) {
  ScoreFragments a;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) a.main[t] = rounded(x.main[t]);
#pragma unroll
  for (int t = 0; t < chunks::kHalo; ++t) a.halo[t] = rounded(x.halo[t]);
  return a;
}

/// One chunk.
template <typename G>
__device__ __forceinline__ void forward_rows(const Rows<G, Sweep::kForward>& rows,
                                             const chunks::Band<G, Sweep::kForward>& band,
                                             const chunks::Weights<G>& weights) {
  using M = Memory<G, Sweep::kForward>;
  const auto& events = rows.events;
  Scores a;
  rows.begin_scores(a, 0);
  Fragment f[G::kMaps][G::kBlocks];
  rows.make_features(f);
  events.await(kFeaturesFull, rows.step);
  Block s[G::kMaps][kTiles];
  float before[G::kMaps][4], factor[G::kMaps][2];
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l) {
    begin_products();
#pragma unroll
    for (int b = 0; b < G::kBlocks; ++b)
      product<Turned::kNo>(s[l], f[l][b], rows_operand(M::kFeatures + l * G::kTile, b), b > 0);
    commit_products();
#pragma unroll
    for (int i = 0; i < 4; ++i) before[l][i] = 0.f;
#pragma unroll
    for (int b = 0; b < G::kBlocks; ++b)
      Bf16::multiply(before[l], f[l][b], chunks::KeySumOperands<G>::load(M::kKeySums, l, b));
  }
  wait_for_products<G::kMaps>();
  a.wait();
  softmax(a, rows, band, weights.of[G::kMaps]);
  if constexpr (G::kMaps > 1) {
    wait_for_products<1>();
    arrived(s[0]);
    add_scores(a, s[0], factor[0], before[0], rows, 0, weights.of[0]);
  }
  wait_for_products<0>();
  arrived(s[G::kMaps - 1]);
  events.say(kFeaturesEmpty);
  add_scores(a, s[G::kMaps - 1], factor[G::kMaps - 1], before[G::kMaps - 1], rows, G::kMaps - 1,
             weights.of[G::kMaps - 1]);
  ScoreFragments rounded_a = rounded_scores<G>(a);
  Block out[G::kBlocks];
  begin_products();
  rows.begin_sum(out, rounded_a, 1, /*add=*/false);
  commit_products();
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l) {
    const chunks::SplitFactor split[2] = {chunks::SplitFactor(factor[l][0]),
                                          chunks::SplitFactor(factor[l][1])};
#pragma unroll
    for (int b = 0; b < G::kBlocks; ++b) chunks::scale_rows(f[l][b], split);
  }
  events.await(kStateFull, rows.step);
  begin_products();
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l) {
#pragma unroll
    for (int b = 0; b < G::kBlocks; ++b)
      product<Turned::kNo>(out, f[l][b],
                            state_rows_operand<G>(M::kState + l * G::kStateOfMap, b), true);
  }
  commit_products();
  wait_for_products<1>();
  events.say(kHaloEmpty);
  wait_for_products<0>();
  arrived(out);
  events.say(kStateEmpty);
  rows.write(rows.args.out, out, rows.own(0));
}

}  // namespace fmmformer::cuda::warpgroups
