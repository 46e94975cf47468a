// SPDX-License-Identifier: Apache-2.0
// The near field of sixteen rows: softmax inside the band. The band's columns are up to three
// groups of sixteen, which begin at a multiple of eight tokens, so that a narrow band is two; all
// scores stay in registers, and softmax is one pass.
#pragma once

#include "attention/fmm/cuda/dropout.cuh"
#include "attention/fmm/cuda/strips/maps.cuh"
#include "attention/fmm/cuda/strips/results.cuh"
#include "attention/fmm/cuda/strips/tiles.cuh"

namespace fmmformer::cuda::strips {

/// The band as seen from sixteen rows. What of it is inside does not depend on the tile.
struct Band {
  int offset;     // from the tile's first token to the first column
  int groups;     // of sixteen columns
  uint32_t bits;  // elements inside, eight for each group: 4 * (column / 8) + i
  float scale;    // of scores, for powers of 2
  uint64_t seed;

  /// `before`, `after`: how far a column may lie below its row and above it.
  __device__ Band(const SweepArgs& args, int before, int after) : bits(0) {
    const int below = (before + 7) / 8, above = (after + 7) / 8;
    // An odd number of eights is rounded up to where the ring of whole tiles holds rows anyway.
    offset = -8 * (below + (below % 2 > above % 2 ? 1 : 0));
    groups = args.has_near ? (below + above + 3) / 2 : 0;
    scale = args.near_scale * kLog2E;
    seed = dropout_seed(args);
    for (int i = 0; i < kMostGroups * 8; ++i) {
      const int apart = offset + i / 8 * kBlockDim + column_of(i / 4 % 2, i) - row_of(i % 4);
      if (apart >= -before && apart <= after) bits |= 1u << i;
    }
  }
  /// Of one group, those of live columns.
  __device__ __forceinline__ uint32_t inside(int group, uint32_t live) const {
    const uint32_t band = bits >> group * 8 & 0xffu;
    if ((live & 0xffffu) == 0xffffu) return band;
    const uint32_t mine = live >> lane_id() % 4 * 2;
    return band & ((mine & 3) * 5 | (mine >> 8 & 3) * 0x50);
  }
};

/// body(group, its first token from the tile's on) for the band's groups: two or three.
template <typename Body>
__device__ __forceinline__ void each_group(const Band& band, const Body& body) {
  body(0, band.offset), body(1, band.offset + kBlockDim);
  if (band.groups > 2) body(2, band.offset + 2 * kBlockDim);
}

/// The same where nothing of a group is kept for the next one: in fp32, one piece of code for all.
template <typename G, typename Body>
__device__ __forceinline__ void each_group_alone(const Band& band, const Body& body) {
  if constexpr (G::kWide) {
#pragma unroll 1
    for (int group = 0; group < band.groups; ++group) body(group, band.offset + group * kBlockDim);
  } else {
    each_group(band, body);
  }
}

/// c = rows columns^T, of sixteen tokens from `first` on in a ring.
template <typename G, typename T>
__device__ __forceinline__ void multiply_columns(Block& c, const Fragments<G>& rows, const T& tiles,
                                                 int which, int first) {
  const auto row_at = [&](int row) { return tiles.band_row(which, first + row); };
  clear(c);
#pragma unroll
  for (int s = 0; s < G::kBlocks; ++s)
    add_product(c, rows[s], load_rows<G, Side::kRight>(row_at, s));
}
/// sum += a columns.
template <typename G, typename T>
__device__ __forceinline__ void add_columns(Blocks<G>& sum, const typename G::Fragment& a,
                                            const T& tiles, int which, int first) {
  const auto row_at = [&](int row) { return tiles.band_row(which, first + row); };
#pragma unroll
  for (int b = 0; b < G::kBlocks; ++b)
    add_product(sum[b], a, load_columns<G, Side::kRight>(row_at, b));
}

/// sum += weight * softmax(...) v; writes log_sum_exp, [length].
template <typename G, typename T>
__device__ __forceinline__ void near_forward(Blocks<G>& sum, const ElemOf<G>* q_tile,
                                             const Band& band, const T& tiles, const Strip& strip,
                                             int tile, const Weights<G>& weights,
                                             float* log_sum_exp) {
  const SweepArgs& args = tiles.args;
  Fragments<G> q;
  load<G>(q, q_tile);
  Block s[kMostGroups];
  float peak[2] = {-INFINITY, -INFINITY}, total[2] = {0.f, 0.f};
  each_group(band, [&](int group, int from) {
    multiply_columns<G>(s[group], q, tiles, 0, tile * kBlockDim + from);
    const uint32_t inside = band.inside(group, tiles.live(from));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& score = s[group][i / 4][i % 4];
      score = inside >> i & 1 ? score : -INFINITY;
      peak[i % 4 / 2] = fmaxf(peak[i % 4 / 2], score);
    }
  });
  float base[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    peak[r] = quad_max(peak[r]);
    base[r] = peak[r] == -INFINITY ? 0.f : peak[r] * band.scale;
  }
  Blocks<G> values;
  clear(values);
  each_group(band, [&](int group, int from) {
    Block& p = s[group];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      p[i / 4][i % 4] = Bf16::exp2(p[i / 4][i % 4] * band.scale - base[i % 4 / 2]);
      total[i % 4 / 2] += p[i / 4][i % 4];
    }
    if (drops<G>(args)) {
      Block kept;
      dropout_by_query(kept, args, band.seed, strip.pair, tile * kBlockDim,
                       tile * kBlockDim + from);
#pragma unroll
      for (int i = 0; i < 8; ++i) p[i / 4][i % 4] *= kept[i / 4][i % 4];
    }
    add_columns<G>(values, operand<G>(p), tiles, 1, tile * kBlockDim + from);
  });
  const uint32_t live = tiles.live();
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    total[r] = quad_sum(total[r]);
    factor[r] = total[r] > 0.f ? __fdividef(1.f, total[r]) : 0.f;
    const int token = tile * kBlockDim + row_of(2 * r);
    if (lane_id() % 4 == 0 && token < args.length) {
      // Infinity for rows that saw nothing or are dead: every later exp(score - log_sum_exp) is 0.
      const bool seen = (live >> row_of(2 * r) & 1) && total[r] > 0.f;
      log_sum_exp[token] = seen ? (base[r] + __log2f(total[r])) * (1.f / kLog2E) : INFINITY;
    }
  }
  add_field<G>(sum, values, factor, weights, G::kMaps);
}

/// dq += the near field's gradient; `dots`: where row dots sum_j p_ij dp_ij go, [length]. Returns
/// <dO, near field> of rows g and g + 8: the gradient of a weight that is equal for all channels.
template <typename G, typename T>
__device__ __forceinline__ float near_query(Blocks<G>& dq, const ElemOf<G>* q_tile,
                                            const ElemOf<G>* grad_tile, const Band& band,
                                            const T& tiles, const Strip& strip, int tile,
                                            const Weights<G>& weights, const float* log_sum_exp,
                                            float* dots) {
  const SweepArgs& args = tiles.args;
  Fragments<G> q, weighted;
  load<G>(q, q_tile), load<G>(weighted, grad_tile);
  weights.weigh(weighted, G::kMaps);
  const float factor = args.near_scale * weights.factor(G::kMaps);
  Block p[kMostGroups], dp[kMostGroups];
  float log_sum[2], dot[2] = {0.f, 0.f}, by_weight = 0.f;
  // Infinity beyond the end too, where the numbers are another row's.
  const uint32_t live = tiles.live();
#pragma unroll
  for (int r = 0; r < 2; ++r)
    log_sum[r] = live >> row_of(2 * r) & 1 ? log_sum_exp[row_of(2 * r)] * kLog2E : INFINITY;
  each_group(band, [&](int group, int from) {
    multiply_columns<G>(p[group], q, tiles, 0, tile * kBlockDim + from);
    multiply_columns<G>(dp[group], weighted, tiles, 1, tile * kBlockDim + from);
    const uint32_t inside = band.inside(group, tiles.live(from));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& element = p[group][i / 4][i % 4];
      element = inside >> i & 1 ? Bf16::exp2(element * band.scale - log_sum[i % 4 / 2]) : 0.f;
    }
    if (drops<G>(args)) {
      Block kept;
      dropout_by_query(kept, args, band.seed, strip.pair, tile * kBlockDim,
                       tile * kBlockDim + from);
#pragma unroll
      for (int i = 0; i < 8; ++i) dp[group][i / 4][i % 4] *= kept[i / 4][i % 4];
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) dot[i % 4 / 2] += p[group][i / 4][i % 4] * dp[group][i / 4][i % 4];
  });
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    dot[r] = quad_sum(dot[r]);
    by_weight += dot[r];
    dot[r] *= factor;
    const int token = tile * kBlockDim + row_of(2 * r);
    if (lane_id() % 4 == 0 && token < args.length) dots[token] = dot[r];
  }
  each_group(band, [&](int group, int from) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      p[group][i / 4][i % 4] *= factor * dp[group][i / 4][i % 4] - dot[i % 4 / 2];
    add_columns<G>(dq, operand<G>(p[group]), tiles, 0, tile * kBlockDim + from);
  });
  return by_weight;
}

/// dk += the near field's gradient; value_sum = sum_i p_ij dO_i, without the weight. The columns
/// are queries; `log_sum` and `dots` say which numbers of theirs the ring holds where.
template <typename G, typename T>
__device__ __forceinline__ void near_key(Blocks<G>& dk, Blocks<G>& value_sum,
                                         const ElemOf<G>* k_tile, const ElemOf<G>* v_tile,
                                         const Band& band, const T& tiles, const Strip& strip,
                                         int tile, const Weights<G>& weights, int log_sum,
                                         int dots) {
  const SweepArgs& args = tiles.args;
  Fragments<G> k, weighted;
  load<G>(k, k_tile), load<G>(weighted, v_tile);
  weights.weigh(weighted, G::kMaps);
  const float factor = args.near_scale * weights.factor(G::kMaps);
  const uint32_t live_keys = tiles.live();
  const uint32_t rows =
      (live_keys >> row_of(0) & 1 ? 0x33u : 0u) | (live_keys >> row_of(2) & 1 ? 0xccu : 0u);
  each_group_alone<G>(band, [&](int group, int from) {
    Block p, dp;
    multiply_columns<G>(p, k, tiles, 0, tile * kBlockDim + from);
    multiply_columns<G>(dp, weighted, tiles, 1, tile * kBlockDim + from);
    const uint32_t inside = band.inside(group, tiles.live(from)) & rows;
    Block kept;
    const bool dropping = drops<G>(args);
    if (dropping)
      dropout_by_key(kept, args, band.seed, strip.pair, tile * kBlockDim, tile * kBlockDim + from);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int token = tile * kBlockDim + from + n * 8 + lane_id() % 4 * 2;
      const float2 sum = *reinterpret_cast<const float2*>(tiles.number(log_sum, token));
      const float2 dot = *reinterpret_cast<const float2*>(tiles.number(dots, token));
      const float base[2] = {sum.x * kLog2E, sum.y * kLog2E};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float probability =
            inside >> (n * 4 + i) & 1 ? Bf16::exp2(p[n][i] * band.scale - base[i % 2]) : 0.f;
        const float gradient = dropping ? dp[n][i] * kept[n][i] : dp[n][i];
        p[n][i] = dropping ? probability * kept[n][i] : probability;
        dp[n][i] = inside >> (n * 4 + i) & 1
                       ? probability * (factor * gradient - (i % 2 ? dot.y : dot.x))
                       : 0.f;
      }
    }
    add_columns<G>(value_sum, operand<G>(p), tiles, 1, tile * kBlockDim + from);
    add_columns<G>(dk, operand<G>(dp), tiles, 0, tile * kBlockDim + from);
  });
}

}  // namespace fmmformer::cuda::strips
