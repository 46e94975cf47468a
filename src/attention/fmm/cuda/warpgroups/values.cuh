// SPDX-License-Identifier: Apache-2.0
// The rows of the sweep for dv, which walks backwards. Rows are keys, columns queries. The formulas
// are those of docs/math.md.
#pragma once

#include "attention/fmm/cuda/warpgroups/probabilities.cuh"

namespace fmmformer::cuda::warpgroups {

/// From scores x: weight * probabilities, those that are `kept`.
template <typename G>
__device__ __forceinline__ void weighted_probabilities(
    NearFragments& near, const Scores& x, const Rows<G, Sweep::kValues>& rows,
    const typename Rows<G, Sweep::kValues>::Band& band, uint32_t kept) {
  const float weight = rows.weight(G::kMaps);
  NearBlocks p;
  rows.gather(p, x);
  probabilities(p, rows, band);
  rows.drop(p, kept);
#pragma unroll
  for (int k = 0; k < chunks::kMostGroups; ++k) {
#pragma unroll
    for (int i = 0; i < 8; ++i) p[k][i / 4][i % 4] *= weight;
    near[k] = rounded(p[k]);
  }
}

/// One chunk.
template <typename G>
__device__ __forceinline__ void value_rows(const Rows<G, Sweep::kValues>& rows,
                                           const typename Rows<G, Sweep::kValues>::Band& band) {
  const auto& events = rows.events;
  NearFragments near;
  Fragment far[kTiles];
  {
    Scores x;
    Block s[kTiles];
    rows.begin_scores(x, 0);
    const uint32_t kept = rows.kept_bits(band);
    rows.make_own_features();
    events.await(kFeaturesFull, rows.step);
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l) rows.begin_far_scores(s, l, /*add=*/l > 0);
    wait_for_products<G::kMaps>();
    x.wait();
    weighted_probabilities(near, x, rows, band, kept);
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
  wait_for_products<1>();
  events.say(kHaloEmpty);  // as soon as may be: keepers wait for it to copy the next rows
  events.await(kStateFull, rows.step);
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l) rows.begin_state_sum(dv, l, /*add=*/true);
  wait_for_products<0>();
  arrived(dv);
  events.say(kStateEmpty);
  rows.write(rows.args.dv, dv, rows.own(0));
}

}  // namespace fmmformer::cuda::warpgroups
