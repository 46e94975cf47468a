// SPDX-License-Identifier: Apache-2.0
// The near field of sixteen rows: softmax inside the band.
#pragma once

#include "attention/fmm/cuda/chunks/groups.cuh"

namespace fmmformer::cuda::chunks {

/// What dropout leaves of a group's elements: factors.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void kept_factors(Block& kept, const Walk<G, kSweep>& walk,
                                             const Band<G, kSweep>& band, int tile) {
  const int own = walk.token(walk.place.tile), other = walk.token(tile);
  if (kSweep == Sweep::kKeys) {
    dropout_by_key(kept, walk.args, band.seed, walk.place.pair, own, other);
  } else {
    dropout_by_query(kept, walk.args, band.seed, walk.place.pair, own, other);
  }
}

/// Clears a group's scores outside of the band; `peak`: of rows g and g + 8, so far.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void cut_scores(Block& p, float (&peak)[2], int k, int tile,
                                           const Walk<G, kSweep>& walk,
                                           const Band<G, kSweep>& band) {
  const uint32_t inside = band.inside(k, walk.live_bits(tile));
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float& score = p[i / 4][i % 4];
    score = inside >> i & 1 ? score : -INFINITY;
    peak[i % 4 / 2] = fmaxf(peak[i % 4 / 2], score);
  }
}
/// p = weight * softmax, as dropout leaves it, for every group of the band; writes log_sum_exp.
template <typename G>
__device__ __forceinline__ void near_scores(Block (&p)[kMostGroups],
                                            const Walk<G, Sweep::kForward>& walk,
                                            const Band<G, Sweep::kForward>& band,
                                            const Loader<G>& load, float weight) {
  const SweepArgs& args = walk.args;
  float peak[2] = {-INFINITY, -INFINITY}, total[2] = {0.f, 0.f}, base[2], factor[2];
  multiply_raw_groups<Reach::kNear>(p, 0, 0, walk, band, load, [&](int k, int tile, bool) {
    cut_scores<G>(p[k], peak, k, tile, walk, band);
  });
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    peak[r] = quad_max(peak[r]);
    base[r] = peak[r] == -INFINITY ? 0.f : peak[r] * band.scale;
  }
  each_group<Reach::kNear>(walk, band, [&](int k, int) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& element = p[k][i / 4][i % 4];
      element = Bf16::exp2(element * band.scale - base[i % 4 / 2]);
      total[i % 4 / 2] += element;
    }
  });
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    total[r] = quad_sum(total[r]);
    factor[r] = total[r] > 0.f ? __fdividef(weight, total[r]) : 0.f;
  }
  each_group<Reach::kNear>(walk, band, [&](int k, int tile) {
    Block kept;
    if (G::kDrops) kept_factors(kept, walk, band, tile);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float here = G::kDrops ? factor[i % 4 / 2] * kept[i / 4][i % 4] : factor[i % 4 / 2];
      p[k][i / 4][i % 4] *= here;
    }
  });
  const uint32_t live = walk.live_bits(walk.place.tile);
  float* log_sum_exp = args.log_sum_exp + walk.place.row_index(args, 1, 0);
  each_row_once(walk, [&](int r, int token) {
    // Infinity for rows that saw nothing or are dead: every later exp(score - log_sum_exp) is 0.
    const bool seen = (live >> row_of(2 * r) & 1) && total[r] > 0.f;
    log_sum_exp[token] = seen ? (base[r] + __log2f(total[r])) * (1.f / kLog2E) : INFINITY;
  });
}

/// a += weight * softmax; writes log_sum_exp.
template <typename G>
__device__ __forceinline__ void near_forward(Block (&a)[kTiles],
                                             const Walk<G, Sweep::kForward>& walk,
                                             const Band<G, Sweep::kForward>& band,
                                             const Loader<G>& load, float weight) {
  Block p[kMostGroups];
  near_scores<G>(p, walk, band, load, weight);
  each_group<Reach::kNear>(walk, band, [&](int k, int) {
#pragma unroll
    for (int i = 0; i < 8; ++i) a[k][i / 4][i % 4] += p[k][i / 4][i % 4];
  });
}

/// Of one group, raw scores p become probabilities; adds to dot, sum_j p_ij g_ij of rows g and g
/// + 8. `log_sum`: of those rows, for powers of 2.
template <typename G>
__device__ __forceinline__ void add_near_dot(float (&dot)[2], Block& p, const Block& g, int k,
                                             int tile, const Walk<G, Sweep::kQueries>& walk,
                                             const Band<G, Sweep::kQueries>& band,
                                             const float (&log_sum)[2]) {
  const uint32_t inside = band.inside(k, walk.live_bits(tile));
  Block kept;
  if (G::kDrops) kept_factors(kept, walk, band, tile);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float& element = p[i / 4][i % 4];
    element = inside >> i & 1 ? element : -INFINITY;
    element = Bf16::exp2(element * band.scale - log_sum[i % 4 / 2]);
    const float gradient = g[i / 4][i % 4];
    dot[i % 4 / 2] += element * (G::kDrops ? gradient * kept[i / 4][i % 4] : gradient);
  }
}
/// log_sum_exp of rows g and g + 8, for powers of 2. Infinity for dead rows and those beyond the
/// end, whose numbers are another row's: their probabilities would be no zeros, or infinite.
template <typename G>
__device__ __forceinline__ void near_log_sums(float (&log_sum)[2],
                                              const Walk<G, Sweep::kQueries>& walk) {
  walk.own_numbers(log_sum, kLogSumExp);
  const uint32_t live = walk.live_bits(walk.place.tile);
#pragma unroll
  for (int r = 0; r < 2; ++r)
    log_sum[r] = live >> row_of(2 * r) & 1 ? log_sum[r] * kLog2E : INFINITY;
}
/// dq += the near field's gradient, from probabilities p, g = grad_out v^T and what add_near_dot
/// made of them; writes row dots. Returns <dO, near field> of rows g and g + 8: the gradient of the
/// weight.
template <typename G, int kCount>
__device__ __forceinline__ float add_near_gradient(Block (&dq)[kSliceBlocks],
                                                   Block (&p)[kMostGroups],
                                                   const Block (&g)[kCount], float (&dot)[2],
                                                   const Walk<G, Sweep::kQueries>& walk,
                                                   const Band<G, Sweep::kQueries>& band,
                                                   const Loader<G>& load, float weight) {
  const SweepArgs& args = walk.args;
  const float factor = args.near_scale * weight;
  float by_weight = 0.f;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    dot[r] = quad_sum(dot[r]);
    by_weight += dot[r];
    dot[r] *= factor;
  }
  float* dots = args.row_dots + walk.place.row_index(args, G::kFields, G::kMaps);
  each_row_once(walk, [&](int r, int token) { dots[token] = dot[r]; });
  each_group<Reach::kNear>(walk, band, [&](int k, int tile) {
    Block kept;
    if (G::kDrops) kept_factors(kept, walk, band, tile);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float gradient = g[k][i / 4][i % 4];
      p[k][i / 4][i % 4] *=
          factor * (G::kDrops ? gradient * kept[i / 4][i % 4] : gradient) - dot[i % 4 / 2];
    }
    add_columns<G>(dq, rounded(p[k]), load, walk.tile(0, tile), walk.place.slice);
  });
  return by_weight;
}

/// dq += the near field's gradient, from g = grad_out v^T.
template <typename G>
__device__ __forceinline__ float near_query(Block (&dq)[kSliceBlocks], const Block (&g)[kTiles],
                                            const Walk<G, Sweep::kQueries>& walk,
                                            const Band<G, Sweep::kQueries>& band,
                                            const Loader<G>& load, float weight) {
  Block p[kMostGroups];
  float log_sum[2], dot[2] = {0.f, 0.f};
  near_log_sums(log_sum, walk);
  multiply_raw_groups<Reach::kNear>(p, 0, 0, walk, band, load, [&](int k, int tile, bool) {
    add_near_dot<G>(dot, p[k], g[k], k, tile, walk, band, log_sum);
  });
  return add_near_gradient<G>(dq, p, g, dot, walk, band, load, weight);
}

/// Two numbers of each half of a tile's tokens: those of this lane's columns.
__device__ __forceinline__ void column_numbers(float2 (&numbers)[2], const float* of_tile) {
  const float* mine = of_tile + lane_id() % 4 * 2;
  numbers[0] = *reinterpret_cast<const float2*>(mine);
  numbers[1] = *reinterpret_cast<const float2*>(mine + 8);
}
/// One group's part of dk, from raw scores p of the queries that see the warp's keys and g = v
/// grad_out^T: p becomes the gradient of scores. Returns weight * probabilities, as dropout leaves
/// them.
template <typename G>
__device__ __forceinline__ Fragment near_key_group(Block& p, const Block& g, int k, int tile,
                                                   const Walk<G, Sweep::kKeys>& walk,
                                                   const Band<G, Sweep::kKeys>& band,
                                                   float weight) {
  const float factor = walk.args.near_scale * weight;
  const uint32_t inside = band.inside(k, walk.live_bits(tile));
  Block kept, weighted;
  if (G::kDrops) kept_factors(kept, walk, band, tile);
  float2 log_sums[2], dots[2];
  column_numbers(log_sums, walk.numbers(kLogSumExp, tile));
  column_numbers(dots, walk.numbers(kDot<G> + G::kMaps, tile));
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float log_sum = (i % 2 ? log_sums[i / 4].y : log_sums[i / 4].x) * kLog2E;
    float& element = p[i / 4][i % 4];
    element = inside >> i & 1 ? element : -INFINITY;
    element = Bf16::exp2(element * band.scale - log_sum);
    float gradient = g[i / 4][i % 4], here = weight * element;
    if (G::kDrops) gradient *= kept[i / 4][i % 4], here *= kept[i / 4][i % 4];
    weighted[i / 4][i % 4] = here;
    element *= factor * gradient - (i % 2 ? dots[i / 4].y : dots[i / 4].x);
  }
  return rounded(weighted);
}

/// dk += the near field's gradient, from g = v grad_out^T; `scores` become weight * probabilities,
/// as dropout leaves them.
using NearScores = Fragment[kMostGroups];
template <typename G>
__device__ __forceinline__ void near_key(Block (&dk)[kSliceBlocks], NearScores& scores,
                                         const Block (&g)[kTiles],
                                         const Walk<G, Sweep::kKeys>& walk,
                                         const Band<G, Sweep::kKeys>& band, const Loader<G>& load,
                                         float weight) {
  Block p[kMostGroups];
  multiply_raw_groups<Reach::kNear>(p, 0, 0, walk, band, load, [](int, int, bool) {});
  each_group<Reach::kNear>(walk, band, [&](int k, int tile) {
    scores[k] = near_key_group<G>(p[k], g[k], k, tile, walk, band, weight);
    add_columns<G>(dk, rounded(p[k]), load, walk.tile(0, tile), walk.place.slice);
  });
}

}  // namespace fmmformer::cuda::chunks
