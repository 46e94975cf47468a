// SPDX-License-Identifier: Apache-2.0
// The near field of sixteen rows: softmax inside the band.
#pragma once

#include <cfloat>

#include "attention/fmm/cuda/chunks_fp32/groups.cuh"

namespace fmmformer::cuda::chunks_fp32 {

/// What dropout leaves of the band's elements in group k, eight bits.
template <typename G, Sweep kSweep>
__device__ __forceinline__ uint32_t kept_bits(const Walk<G, kSweep>& walk, const Band<kSweep>& band,
                                              int k) {
  if (walk.args.drop_below == 0) return ~0u;
  const int own = walk.token(walk.place.tile), other = walk.token(tile_of_group(walk, k));
  Block factor;
  if (kSweep == Sweep::kKeys) {
    dropout_by_key(factor, walk.args, band.seed, walk.place.pair, own, other);
  } else {
    dropout_by_query(factor, walk.args, band.seed, walk.place.pair, own, other);
  }
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) bits |= (factor[i / 4][i % 4] > 0.f ? 1u : 0u) << i;
  return bits;
}
/// Of all groups, in the order of Band::bits.
template <typename G, Sweep kSweep>
__device__ __forceinline__ uint32_t kept_bits(const Walk<G, kSweep>& walk,
                                              const Band<kSweep>& band) {
  if (walk.args.drop_below == 0) return ~0u;
  uint32_t bits = 0;
#pragma unroll 1
  for (int k = 0; k < band.groups; ++k) bits |= kept_bits(walk, band, k) << k * 8;
  return bits;
}
/// The factor of one element.
__device__ __forceinline__ float kept_factor(uint32_t bits, int k, int i, const SweepArgs& args) {
  return bits >> (k * 8 + i) & 1 ? args.keep_factor : 0.f;
}

/// What makes powers of 2 of the near field's raw scores. Never 0, as it were in a chunk of dead
/// rows, whose scores are 0: what the band does not reach is -infinity times this.
template <typename G, Sweep kSweep>
__device__ __forceinline__ float score_scale(const Walk<G, kSweep>& walk,
                                             const Band<kSweep>& band) {
  return fmaxf(band.scale * power_of_2(-walk.shift(kOwnRows) - walk.shift(kBandRows)), FLT_MIN);
}

/// a = weight * softmax, where the band reaches; writes log_sum_exp.
template <typename G>
__device__ __forceinline__ void near_forward(Block (&a)[G::kGroups],
                                             const Walk<G, Sweep::kForward>& walk,
                                             const Band<Sweep::kForward>& band,
                                             const Loader<G>& load, float weight) {
  const SweepArgs& args = walk.args;
  Block p[kBandGroups];
  float peak[2] = {-INFINITY, -INFINITY}, total[2] = {0.f, 0.f}, base[2], factor[2];
  multiply_raw_groups(p, 0, 0, walk, band.groups, load);
  const float scale = score_scale(walk, band);
  each_group<kBandGroups>(walk, band.groups, [&](int k, int tile) {
    const uint32_t inside = band.inside(k, walk.live_bits(tile));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& score = p[k][i / 4][i % 4];
      score = inside >> i & 1 ? score : -INFINITY;
      peak[i % 4 / 2] = fmaxf(peak[i % 4 / 2], score);
    }
  });
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    peak[r] = quad_max(peak[r]);
    base[r] = peak[r] == -INFINITY ? 0.f : peak[r] * scale;
  }
  each_group<kBandGroups>(walk, band.groups, [&](int k, int) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& element = p[k][i / 4][i % 4];
      element = Bf16::exp2(element * scale - base[i % 4 / 2]);
      total[i % 4 / 2] += element;
    }
  });
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    total[r] = quad_sum(total[r]);
    factor[r] = total[r] > 0.f ? __fdividef(weight, total[r]) : 0.f;
  }
  const uint32_t kept = kept_bits(walk, band);
  each_group<kBandGroups>(walk, band.groups, [&](int k, int) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      a[k][i / 4][i % 4] = factor[i % 4 / 2] * kept_factor(kept, k, i, args) * p[k][i / 4][i % 4];
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

/// dq += the near field's gradient, from g = grad_out v^T with its shift; writes row dots sum_j
/// p_ij dp_ij. Returns <dO, near field> of rows g and g + 8: the gradient of the weight.
template <typename G>
__device__ __forceinline__ float near_query(Block (&dq)[kSliceBlocks], const Block (&g)[G::kGroups],
                                            const Walk<G, Sweep::kQueries>& walk,
                                            const Band<Sweep::kQueries>& band,
                                            const Loader<G>& load, float weight) {
  const SweepArgs& args = walk.args;
  const float factor = args.near_scale * weight;
  const float g_factor = factor * power_of_2(-product_shift(walk)), scale = score_scale(walk, band);
  float log_sum[2], dot[2] = {0.f, 0.f};
  walk.own_numbers(log_sum, kLogSumExp);
  // Infinity beyond the end too, where the numbers are another row's.
  const uint32_t live = walk.live_bits(walk.place.tile);
#pragma unroll
  for (int r = 0; r < 2; ++r)
    log_sum[r] = live >> row_of(2 * r) & 1 ? log_sum[r] * kLog2E : INFINITY;
  Block p[kBandGroups];
  multiply_raw_groups(p, 0, 0, walk, band.groups, load);
  const uint32_t kept = kept_bits(walk, band);
  each_group<kBandGroups>(walk, band.groups, [&](int k, int tile) {
    const uint32_t inside = band.inside(k, walk.live_bits(tile));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& element = p[k][i / 4][i % 4];
      element = inside >> i & 1 ? element : -INFINITY;
      element = Bf16::exp2(element * scale - log_sum[i % 4 / 2]);
      dot[i % 4 / 2] += element * kept_factor(kept, k, i, args) * g[k][i / 4][i % 4];
    }
  });
  float by_weight = 0.f;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    dot[r] = quad_sum(dot[r]) * power_of_2(-product_shift(walk));
    by_weight += dot[r];
    dot[r] *= factor;
  }
  float* dots = args.row_dots + walk.place.row_index(args, args.all_maps + 1, args.all_maps);
  each_row_once(walk, [&](int r, int token) { dots[token] = dot[r]; });
  // A row's dot is the mean of its products, times the same factor.
  const int shift = shift_for(2.f * fabsf(factor) * args.keep_factor * largest_product(walk));
  const float to_operand = power_of_2(shift);
  Block sums[kSliceBlocks];
  clear(sums);
  each_group<kBandGroups>(walk, band.groups, [&](int k, int tile) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      p[k][i / 4][i % 4] *=
          g_factor * kept_factor(kept, k, i, args) * g[k][i / 4][i % 4] - dot[i % 4 / 2];
    }
    add_columns<G>(sums, split_result(p[k], to_operand), load, walk.tile(0, tile),
                   walk.place.slice);
  });
  add_totals(dq, sums, power_of_2(-shift - walk.shift(kBandRows)));
  return by_weight;
}

/// dk += the near field's gradient, from g = v grad_out^T with its shift; a = weight *
/// probabilities, as dropout leaves them, of the queries that see the warp's keys.
template <typename G>
__device__ __forceinline__ void near_key(Block (&dk)[kSliceBlocks], Block (&a)[G::kGroups],
                                         const Block (&g)[G::kGroups],
                                         const Walk<G, Sweep::kKeys>& walk,
                                         const Band<Sweep::kKeys>& band, const Loader<G>& load,
                                         float weight) {
  using S = State<G, Sweep::kKeys>;
  const float factor = walk.args.near_scale * weight;
  const float g_factor = factor * power_of_2(-product_shift(walk)), scale = score_scale(walk, band);
  const float dots_beside =
      Scaling<Memory<G, Sweep::kKeys>>::maximum(walk.set_beside(), kDots + G::kMaps);
  const int shift = shift_for(fabsf(factor) * walk.args.keep_factor * largest_product(walk) +
                              fmaxf(walk.maximum(kDots + G::kMaps), dots_beside));
  const float to_operand = power_of_2(shift);
  Block p[kBandGroups];
  multiply_raw_groups(p, 0, 0, walk, band.groups, load);
  const uint32_t kept = kept_bits(walk, band);
  Block sums[kSliceBlocks];
  clear(sums);
  each_group<kBandGroups>(walk, band.groups, [&](int k, int tile) {
    const uint32_t inside = band.inside(k, walk.live_bits(tile));
    float2 log_sums[2], dots[2];
    S::column_numbers(log_sums, walk.numbers(kLogSumExp, tile));
    S::column_numbers(dots, walk.numbers(kDot<G> + G::kMaps, tile));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float left = kept_factor(kept, k, i, walk.args);
      const float log_sum = (i % 2 ? log_sums[i / 4].y : log_sums[i / 4].x) * kLog2E;
      const float dot = i % 2 ? dots[i / 4].y : dots[i / 4].x;
      float& element = p[k][i / 4][i % 4];
      element = inside >> i & 1 ? element : -INFINITY;
      element = Bf16::exp2(element * scale - log_sum);
      a[k][i / 4][i % 4] = weight * left * element;
      element *= g_factor * left * g[k][i / 4][i % 4] - dot;
    }
    add_columns<G>(sums, split_result(p[k], to_operand), load, walk.tile(0, tile),
                   walk.place.slice);
  });
  add_totals(dk, sums, power_of_2(-shift - walk.shift(kBandRows)));
}

}  // namespace fmmformer::cuda::chunks_fp32
