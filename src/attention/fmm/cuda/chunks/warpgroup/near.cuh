// SPDX-License-Identifier: Apache-2.0
// The near field beside a warpgroup's products: a band's tiles differ from warp to warp, and every
// warp multiplies them for itself. Results come first, and what a warpgroup adds to them later.
#pragma once

#include "attention/fmm/cuda/chunks/near.cuh"
#include "attention/fmm/cuda/chunks/warpgroup/products.cuh"

namespace fmmformer::cuda::chunks::warpgroup {

/// out = weight * softmax v; writes log_sum_exp.
template <typename G>
__device__ __forceinline__ void set_near_out(Block (&out)[kSliceBlocks],
                                             const Walk<G, Sweep::kForward>& walk,
                                             const Band<G, Sweep::kForward>& band,
                                             const Loader<G>& load, float weight) {
  Block p[kMostGroups];
  near_scores<G>(p, walk, band, load, weight);
  clear(out);
  each_group<Reach::kNear>(walk, band, [&](int k, int tile) {
    add_columns<G>(out, rounded(p[k]), load, walk.tile(1, tile), 0);
  });
}

/// p[k] and g[k], products of the own rows of tensors 0 and 1 with the band's, and use(k, tile),
/// for two groups at a time: registers do not hold all of them at once.
template <typename G, Sweep kSweep, typename Use>
__device__ __forceinline__ void each_two_groups(Block (&p)[kMostGroups], Block (&g)[kMostGroups],
                                                const Walk<G, kSweep>& walk,
                                                const Band<G, kSweep>& band, const Loader<G>& load,
                                                const Use& use) {
  constexpr int kAtOnce = 2;
#pragma unroll
  for (int from = 0; from < kMostGroups; from += kAtOnce) {
    if (from >= band.groups) break;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
#pragma unroll
      for (int s = 0; s < G::kBlocks; ++s) {
        const Fragment row = load.left(walk.own_tile(which), s);
#pragma unroll
        for (int k = from; k < from + kAtOnce && k < kMostGroups; ++k) {
          Block& c = which == 0 ? p[k] : g[k];
          const int tile = walk.tile(which, tile_of_group(walk, k));
          if (s == 0) set_product(c, row, load.right(tile, s));
          if (s != 0) add_product(c, row, load.right(tile, s));
        }
      }
    }
#pragma unroll
    for (int k = from; k < from + kAtOnce && k < kMostGroups; ++k) use(k, tile_of_group(walk, k));
  }
}

/// dq = the near field's gradient. Returns <dO, near field> of rows g and g + 8.
template <typename G>
__device__ __forceinline__ float set_near_dq(Block (&dq)[kSliceBlocks],
                                             const Walk<G, Sweep::kQueries>& walk,
                                             const Band<G, Sweep::kQueries>& band,
                                             const Loader<G>& load, float weight) {
  Block p[kMostGroups], g[kMostGroups];
  float log_sum[2], dot[2] = {0.f, 0.f};
  near_log_sums(log_sum, walk);
  each_two_groups(p, g, walk, band, load, [&](int k, int tile) {
    add_near_dot<G>(dot, p[k], g[k], k, tile, walk, band, log_sum);
  });
  clear(dq);
  return add_near_gradient<G>(dq, p, g, dot, walk, band, load, weight);
}

/// dk = the near field's gradient; `scores` become weight * probabilities, as dropout leaves them.
template <typename G>
__device__ __forceinline__ void set_near_dk(Block (&dk)[kSliceBlocks], NearScores& scores,
                                            const Walk<G, Sweep::kKeys>& walk,
                                            const Band<G, Sweep::kKeys>& band,
                                            const Loader<G>& load, float weight) {
  Block p[kMostGroups], g[kMostGroups];
  clear(dk);
  each_two_groups(p, g, walk, band, load, [&](int k, int tile) {
    scores[k] = near_key_group<G>(p[k], g[k], k, tile, walk, band, weight);
    add_columns<G>(dk, rounded(p[k]), load, walk.tile(0, tile), 0);
  });
}

}  // namespace fmmformer::cuda::chunks::warpgroup
