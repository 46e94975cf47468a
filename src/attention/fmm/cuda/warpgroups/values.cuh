// SPDX-License-Identifier: Apache-2.0
// The rows of the sweep for dv, which walks backwards. Rows are keys, columns queries. The formulas
// are those of docs/math.md.
#pragma once

#include "attention/fmm/cuda/warpgroups/forward.cuh"

namespace fmmformer::cuda::warpgroups {

/// From scores x: weight * probabilities inside the band, 0 outside.
template <typename G>
__device__ __forceinline__ void weighted_probabilities(
    NearFragments& near, const Scores& x, const Rows<G, Sweep::kValues>& rows,
    const typename Rows<G, Sweep::kValues>::Band& band, float weight) {
  NearBlocks p;
  rows.gather(p, x);
  const uint32_t inside = rows.near_bits(band);
#pragma unroll
  for (int k = 0; k < chunks::kMostGroups; ++k) {
    float2 log_sums[2];
    rows.column_numbers(log_sums, chunks::kLogSumExp, rows.tile + k);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float log_sum = i % 2 ? log_sums[i / 4].y : log_sums[i / 4].x;
      float& element = p[k][i / 4][i % 4];
      element = weight * Bf16::exp2(element * band.scale - log_sum * kLog2E);
      element = inside >> (8 * k + i) & 1 ? element : 0.f;
    }
    near[k] = rounded(p[k]);
  }
}

/// One chunk.
template <typename G>
__device__ __forceinline__ void value_rows(const Rows<G, Sweep::kValues>& rows,
                                           const typename Rows<G, Sweep::kValues>::Band& band,
                                           float near_weight) {
  const auto& events = rows.events;
  NearFragments near;
  Fragment far[kTiles];
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
    weighted_probabilities(near, x, rows, band, near_weight);
    wait_for_products<0>();
    arrived(s);
    events.say(kFeaturesEmpty);
    rows.cut(s);
    round_tiles(far, s);
  }
  Block dv[G::kBlocks];
  Fragment operands[kTiles + chunks::kHalo];
  rows.begin_near_sum(dv, operands, near, 1, /*add=*/false);
  rows.begin_far_sum(dv, far, 1);
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
