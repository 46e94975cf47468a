// SPDX-License-Identifier: Apache-2.0
// The near field of sixteen rows: softmax inside the band, whose columns are up to three tiles.
#pragma once

#include "attention/fmm/cuda/chunks/rows.cuh"
#include "attention/fmm/cuda/dropout.cuh"

namespace fmmformer::cuda::chunks {

constexpr int kMostGroups = kHalo + 1;  // of sixteen columns that a band may touch
static_assert(kFarthest == kHalo * kBlockDim);

/// The band as seen from sixteen rows; group k is the tile k before the rows' own or, where rows
/// are keys, k after it.
template <typename G, Sweep kSweep>
struct Band {
  static constexpr bool kAfter = kSweep == Sweep::kKeys;
  int groups;
  uint32_t bits;  // elements inside, eight for each group: 4 * (column / 8) + i
  float scale;    // of scores, for powers of 2
  uint64_t seed;

  __device__ explicit Band(const SweepArgs& args) : bits(0) {
    groups = args.has_near ? (args.left + kBlockDim - 1) / kBlockDim + 1 : 0;
    scale = args.near_scale * kLog2E;
    seed = G::kDrops ? dropout_seed(args) : 0;
    for (int i = 0; i < kMostGroups * 8; ++i) {
      const int across = column_of(i / 4 % 2, i) - row_of(i % 4);
      const int apart = i / 8 * kBlockDim + (kAfter ? across : -across);  // key to query
      if (apart >= 0 && apart <= args.left) bits |= 1u << i;
    }
  }
  /// Of one group, those of live columns.
  __device__ __forceinline__ uint32_t inside(int group, uint32_t live) const {
    const uint32_t band = bits >> group * 8 & 0xffu;
    if (live == 0xffffu) return band;
    const uint32_t mine = live >> lane_id() % 4 * 2;
    return band & ((mine & 3) * 5 | (mine >> 8 & 3) * 0x50);
  }
};

/// Calls body(k, tile of the chunk) for the groups of columns that the warp's rows see: near, or
/// far, those inside the chunk, or both.
enum class Reach { kNear, kFar, kBoth };
template <Reach kReach, typename G, Sweep kSweep, typename Body>
__device__ __forceinline__ void each_group(const Walk<G, kSweep>& walk,
                                           const Band<G, kSweep>& band, const Body& body) {
  const int own = walk.place.tile, farthest = kSweep == Sweep::kKeys ? kTiles - 1 - own : own;
#pragma unroll
  for (int k = 0; k < (kReach == Reach::kNear ? kMostGroups : kTiles); ++k) {
    const bool near = k < band.groups, far = k <= farthest;
    if (kReach == Reach::kNear ? near : kReach == Reach::kFar ? far : near || far)
      body(k, kSweep == Sweep::kKeys ? own + k : own - k);
  }
}

/// c = rows columns^T.
template <typename G>
__device__ __forceinline__ void multiply_columns(Block& c, const Fragment (&rows)[G::kBlocks],
                                                 const Loader<G>& load, int tile) {
  clear(c);
#pragma unroll
  for (int s = 0; s < G::kBlocks; ++s) add_product(c, rows[s], load.right(tile, s));
}
/// sum += a columns, for this slice of the columns' channels.
template <typename G>
__device__ __forceinline__ void add_columns(Block (&sum)[kSliceBlocks], const Fragment& a,
                                            const Loader<G>& load, int tile, int slice) {
#pragma unroll
  for (int b = 0; b < kSliceBlocks; ++b)
    add_product(sum[b], a, load.right_turned(tile, slice * kSliceBlocks + b));
}
template <typename G>
__device__ __forceinline__ void load_rows(Fragment (&rows)[G::kBlocks], const Loader<G>& load,
                                          int tile) {
#pragma unroll
  for (int s = 0; s < G::kBlocks; ++s) rows[s] = load.left(tile, s);
}

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

/// a = weight * softmax; writes log_sum_exp.
template <typename G>
__device__ __forceinline__ void near_forward(Block (&a)[kTiles],
                                             const Walk<G, Sweep::kForward>& walk,
                                             const Band<G, Sweep::kForward>& band,
                                             const Loader<G>& load, float weight) {
  const SweepArgs& args = walk.args;
  Fragment q[G::kBlocks];
  load_rows<G>(q, load, walk.own_tile(0));
  float peak[2] = {-INFINITY, -INFINITY}, total[2] = {0.f, 0.f}, base[2], factor[2];
  each_group<Reach::kNear>(walk, band, [&](int k, int tile) {
    multiply_columns<G>(a[k], q, load, walk.tile(0, tile));
    const uint32_t inside = band.inside(k, walk.live_bits(tile));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& score = a[k][i / 4][i % 4];
      score = inside >> i & 1 ? score : -INFINITY;
      peak[i % 4 / 2] = fmaxf(peak[i % 4 / 2], score);
    }
  });
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    peak[r] = quad_max(peak[r]);
    base[r] = peak[r] == -INFINITY ? 0.f : peak[r] * band.scale;
  }
  each_group<Reach::kNear>(walk, band, [&](int k, int) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& p = a[k][i / 4][i % 4];
      p = Bf16::exp2(p * band.scale - base[i % 4 / 2]);
      total[i % 4 / 2] += p;
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
    for (int i = 0; i < 8; ++i)
      a[k][i / 4][i % 4] *= G::kDrops ? factor[i % 4 / 2] * kept[i / 4][i % 4] : factor[i % 4 / 2];
  });
  const uint32_t live = walk.live_bits(walk.place.tile);
  float* log_sum_exp = args.log_sum_exp + walk.place.row_index(args, 1, 0);
  each_row_once(walk, [&](int r, int token) {
    // Infinity for rows that saw nothing or are dead: every later exp(score - log_sum_exp) is 0.
    const bool seen = (live >> row_of(2 * r) & 1) && total[r] > 0.f;
    log_sum_exp[token] = seen ? (base[r] + __log2f(total[r])) * (1.f / kLog2E) : INFINITY;
  });
}

/// dq += the near field's gradient, from g = grad_out v^T; writes row dots sum_j p_ij dp_ij to
/// `dots`, [length]. Returns <dO, near field> of rows g and g + 8: the gradient of the weight.
template <typename G>
__device__ __forceinline__ float near_query(Block (&dq)[kSliceBlocks], const Block (&g)[kTiles],
                                            const Walk<G, Sweep::kQueries>& walk,
                                            const Band<G, Sweep::kQueries>& band,
                                            const Loader<G>& load, const float (&log_sum_exp)[2],
                                            float weight, float* dots) {
  const float factor = walk.args.near_scale * weight;
  Block p[kMostGroups];
  float dot[2] = {0.f, 0.f};
  const float log_sum[2] = {log_sum_exp[0] * kLog2E, log_sum_exp[1] * kLog2E};
  {
    Fragment q[G::kBlocks];
    load_rows<G>(q, load, walk.own_tile(0));
    each_group<Reach::kNear>(walk, band, [&](int k, int tile) {
      multiply_columns<G>(p[k], q, load, walk.tile(0, tile));
      const uint32_t inside = band.inside(k, walk.live_bits(tile));
      Block kept;
      if (G::kDrops) kept_factors(kept, walk, band, tile);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& element = p[k][i / 4][i % 4];
        element =
            inside >> i & 1 ? Bf16::exp2(element * band.scale - log_sum[i % 4 / 2]) : 0.f;
        const float gradient = g[k][i / 4][i % 4];
        dot[i % 4 / 2] += element * (G::kDrops ? gradient * kept[i / 4][i % 4] : gradient);
      }
    });
  }
  float by_weight = 0.f;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    dot[r] = quad_sum(dot[r]);
    by_weight += dot[r];
    dot[r] *= factor;
  }
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

/// Probabilities of one group of queries that see the warp's keys, before dropout.
template <typename G>
__device__ __forceinline__ void probabilities(Block& p, const Fragment (&keys)[G::kBlocks],
                                              const Walk<G, Sweep::kKeys>& walk,
                                              const Band<G, Sweep::kKeys>& band,
                                              const Loader<G>& load, int k, int tile) {
  multiply_columns<G>(p, keys, load, walk.tile(0, tile));
  const uint32_t inside = band.inside(k, walk.live_bits(tile));
  const float* log_sums = walk.numbers(kLogSumExp, tile) + lane_id() % 4 * 2;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float log_sum = log_sums[i / 4 * 8 + i % 2] * kLog2E;
    float& element = p[i / 4][i % 4];
    element = inside >> i & 1 ? Bf16::exp2(element * band.scale - log_sum) : 0.f;
  }
}

/// dk += the near field's gradient, from g = v grad_out^T.
template <typename G>
__device__ __forceinline__ void near_key(Block (&dk)[kSliceBlocks], const Block (&g)[kTiles],
                                         const Walk<G, Sweep::kKeys>& walk,
                                         const Band<G, Sweep::kKeys>& band, const Loader<G>& load,
                                         float weight) {
  const float factor = walk.args.near_scale * weight;
  Fragment keys[G::kBlocks];
  load_rows<G>(keys, load, walk.own_tile(0));
  each_group<Reach::kNear>(walk, band, [&](int k, int tile) {
    Block p, kept;
    probabilities<G>(p, keys, walk, band, load, k, tile);
    if (G::kDrops) kept_factors(kept, walk, band, tile);
    const float* dots = walk.numbers(kDot<G> + G::kMaps, tile) + lane_id() % 4 * 2;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& element = p[i / 4][i % 4];
      const float gradient = G::kDrops ? g[k][i / 4][i % 4] * kept[i / 4][i % 4]
                                       : g[k][i / 4][i % 4];
      // The dot of a token that is not inside may be anything.
      element = element == 0.f ? 0.f : element * (factor * gradient - dots[i / 4 * 8 + i % 2]);
    }
    add_columns<G>(dk, rounded(p), load, walk.tile(0, tile), walk.place.slice);
  });
}
/// a = weight * probabilities, as dropout leaves them.
template <typename G>
__device__ __forceinline__ void near_values(Block (&a)[kTiles], const Walk<G, Sweep::kKeys>& walk,
                                            const Band<G, Sweep::kKeys>& band,
                                            const Loader<G>& load, float weight) {
  Fragment keys[G::kBlocks];
  load_rows<G>(keys, load, walk.own_tile(0));
  each_group<Reach::kNear>(walk, band, [&](int k, int tile) {
    Block kept;
    probabilities<G>(a[k], keys, walk, band, load, k, tile);
    if (G::kDrops) kept_factors(kept, walk, band, tile);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      a[k][i / 4][i % 4] *= G::kDrops ? weight * kept[i / 4][i % 4] : weight;
  });
}

}  // namespace fmmformer::cuda::chunks
