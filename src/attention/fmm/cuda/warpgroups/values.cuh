// SPDX-License-Identifier: Apache-2.0
// The rows of the sweep for dv, which walks backwards. Rows are keys, columns queries. The formulas
// are those of docs/math.md.
#pragma once

#include "attention/fmm/cuda/warpgroups/forward.cuh"

namespace fmmformer::cuda::warpgroups {

/// Scores x become weight * probabilities inside the band, 0 outside.
template <typename G>
__device__ __forceinline__ void weighted_probabilities(
    Scores& x, const Rows<G, Sweep::kValues>& rows,
    const typename Rows<G, Sweep::kValues>::Band& band, float weight) {
  rows.each_near_tile(
      x, band.groups,
      [&](Block& c, int index, int group) {
        const uint32_t inside = band.inside(group, rows.live_bits(index));
        float2 log_sums[2];
        rows.column_numbers(log_sums, chunks::kLogSumExp, index);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float log_sum = i % 2 ? log_sums[i / 4].y : log_sums[i / 4].x;
          float& element = c[i / 4][i % 4];
          element = inside >> i & 1 ? element : -INFINITY;
          element = weight * Bf16::exp2(element * band.scale - log_sum * kLog2E);
        }
      },
      [](Block& c, int) { clear(c); });
}

/// One chunk.
template <typename G>
__device__ __forceinline__ void value_rows(const Rows<G, Sweep::kValues>& rows,
                                           const typename Rows<G, Sweep::kValues>::Band& band,
                                           float near_weight) {
  const auto& events = rows.events;
  ScoreFragments a;
  {
    Scores x;
    Block s[kTiles];
    rows.begin_scores(x, 0);
    events.await(kFeaturesFull, rows.step);
    events.await(kOwnFull, rows.step);
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l) rows.begin_far_scores(s, l, /*add=*/l > 0);
    wait_for_products<G::kMaps>();
    x.wait();
    weighted_probabilities(x, rows, band, near_weight);
    wait_for_products<0>();
    arrived(s);
    events.say(kFeaturesEmpty);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (!rows.is_far_tile(t)) continue;
      if (t == rows.tile) cut_at_diagonal</*kBefore=*/true>(s[t]);
      add(x.main[t], s[t]);
    }
    a = rounded_scores(x);
  }
  Block dv[G::kBlocks];
  begin_products();
  rows.begin_sum(dv, a, 1, /*add=*/false);
  commit_products();
  events.await(kStateFull, rows.step);
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l) rows.begin_state_sum(dv, l, /*add=*/true);
  wait_for_products<G::kMaps>();
  events.say(kHaloEmpty);
  wait_for_products<0>();
  arrived(dv);
  events.say(kStateEmpty);
  rows.write(rows.args.dv, dv, rows.own(0));
}

}  // namespace fmmformer::cuda::warpgroups
