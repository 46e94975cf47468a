// SPDX-License-Identifier: Apache-2.0
// The near field of sixteen queries: softmax over the keys of their own tile and of the two before.
// Backward makes probabilities and their gradients once; turned, they are the keys' side's too.
#pragma once

#include "attention/fmm/cuda/dropout.cuh"
#include "attention/fmm/cuda/whole/sequence.cuh"

namespace fmmformer::cuda::whole {

/// What sixteen rows see of the three tiles that end with their own. A score's sum begins with 0
/// inside the band and with -infinity outside, which no product changes; so there are no branches.
template <typename G>
struct Band {
  const Sequence<G>& at;
  const float4* bias;
  float scale;  // of scores, for powers of 2
  uint64_t seed;
  bool has_dead;  // among this warp's tokens and those before

  __device__ explicit Band(const Sequence<G>& at)
      : at(at),
        bias(shared_at<float4>(G::kBias) + lane_id()),
        scale(at.args.near_scale * kLog2E),
        seed(dropout_seed(at.args)) {
    has_dead = (at.live_word(at.warp) & at.live_word(max(at.warp - 1, 0))) != ~0u;
  }
  /// Whether half n of a group has columns that nobody sees: their probabilities are 0.
  static constexpr __device__ bool is_empty(int group, int n) {
    return G::kNarrow && group == 0 && n == 0;
  }
  /// By all threads; a barrier must follow.
  static __device__ void fill(const SweepArgs& args) {
    for (int i = threadIdx.x; i < (2 * kGroups + 1) * kWarpSize; i += blockDim.x) {
      const int half = i / kWarpSize, apart = (half - 4) * 8 + i % 4 * 2 - i % kWarpSize / 4;
      // The last is that of a tile before the sequence.
      const auto bias_of = [&](int apart) {
        return half < 2 * kGroups && apart <= 0 && apart >= -args.left ? 0.f : -INFINITY;
      };
      shared_at<float4>(G::kBias)[i] =
          make_float4(bias_of(apart), bias_of(apart + 1), bias_of(apart - 8), bias_of(apart - 7));
    }
  }
  /// Scores of a tile's queries with the keys of all groups.
  __device__ __forceinline__ void make_scores(Block (&scores)[kGroups], const Fragments<G>& q,
                                              int tile) const {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int keys = tile - 2 + group;
      const bool missing = keys < 0 && at.warp == 0;
      const Fragment k = load_block<Side::kRight>(at.rows(kKeys, keys));
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        if (is_empty(group, n)) continue;
        const float4 from = bias[(missing ? 2 * kGroups : 2 * group + n) * kWarpSize];
        float(&to)[4] = scores[group][n];
        to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
        Bf16::multiply(to, q[0], {{k.r[n], k.r[n + 2]}});
      }
    }
    if (has_dead) hide_dead(scores, tile);
  }
  /// Factors of a group's probabilities: 0 or 1 / (1 - p).
  __device__ __forceinline__ void dropout(Block& factors, int tile, int group) const {
    const int query = at.first_token(tile);
    dropout_by_query(factors, at.args, seed, at.pair(), query, query + (group - 2) * kBlockDim);
  }

 private:
  __device__ __forceinline__ void hide_dead(Block (&scores)[kGroups], int tile) const {
    const uint64_t live =
        uint64_t(at.live_word(at.warp)) << kTokens | (at.warp > 0 ? at.live_word(at.warp - 1) : 0u);
#pragma unroll
    for (int i = 0; i < kGroups * 8; ++i) {
      if (is_empty(i / 8, i / 4 % 2)) continue;
      if (!(live >> (tile * kBlockDim + i / 8 * kBlockDim + column_of(i / 4 % 2, i)) & 1))
        scores[i / 8][i / 4 % 2][i % 4] = -INFINITY;
    }
  }
};

/// sum += weight * softmax(...) v of a tile of the warp; writes log_sum_exp, [length].
template <typename G>
__device__ __forceinline__ void near_forward(const Band<G>& band, int tile, float* log_sum_exp,
                                             Blocks<G>& sum) {
  const Sequence<G>& at = band.at;
  Block p[kGroups];
  float peak[2] = {-INFINITY, -INFINITY}, base[2], factor[2];
  RowSums<G> totals;  // of probabilities as they are multiplied, rounded
  {
    Fragments<G> q;
    load<G>(q, at.rows(kQueries, tile));
    band.make_scores(p, q, tile);
  }
#pragma unroll
  for (int i = 0; i < kGroups * 8; ++i) {
    if (!band.is_empty(i / 8, i / 4 % 2))
      peak[i % 4 / 2] = fmaxf(peak[i % 4 / 2], p[i / 8][i / 4 % 2][i % 4]);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    peak[r] = quad_max(peak[r]);
    base[r] = peak[r] == -INFINITY ? 0.f : peak[r] * band.scale;
  }
  Blocks<G> values;
  clear(values);
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& x = p[group][i / 4][i % 4];
      x = band.is_empty(group, i / 4) ? 0.f : Bf16::exp2(x * band.scale - base[i % 4 / 2]);
    }
    Fragment probabilities = rounded(p[group]);
    totals.add(probabilities);
    if (strips::drops<G>(at.args)) {
      Block kept;
      band.dropout(kept, tile, group);
#pragma unroll
      for (int i = 0; i < 8; ++i) p[group][i / 4][i % 4] *= kept[i / 4][i % 4];
      probabilities = rounded(p[group]);
    }
    add_rows_of<G>(values, probabilities, at.rows(kValues, tile - 2 + group));
  }
  const uint32_t live = at.live(tile);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float total = totals.of(r);
    factor[r] = total > 0.f ? reciprocal(total) : 0.f;
    const int token = at.first_token(tile) + row_of(2 * r);
    if (lane_id() % 4 == 0 && token < at.args.length) {
      // Infinity for rows that saw nothing or are dead: every later exp(score - log_sum_exp) is 0.
      const bool seen = (live >> row_of(2 * r) & 1) && total > 0.f;
      log_sum_exp[token] = seen ? (base[r] + __log2f(total)) * (1.f / kLog2E) : INFINITY;
    }
  }
  strips::add_field<G>(sum, values, factor, at.weights(), G::kMaps);
}

/// What the keys' side takes from a group of the band: probabilities after dropout, and gradients
/// of scores. Queries are rows.
struct BandPart {
  Fragment probabilities, gradients;
};
/// All parts of a warp's queries; turned, with keys as rows, they are loaded by the warp that has
/// the keys. In shared memory, but for those that do not fit.
template <typename G>
struct BandParts {
  enum Slot { kFirstTwoBefore, kFirstBefore, kSecondBefore, kFirstOwn, kSecondFirst, kSecondOwn };
  /// Of a tile's queries with the keys of a group.
  static constexpr __device__ Slot slot(int tile, int group) {
    return static_cast<Slot>(tile == 0 ? (group < 2 ? group : kFirstOwn)
                                       : (group == 0 ? kSecondBefore : kFirstOwn + group));
  }
  const Sequence<G>& at;
  BandPart kept[G::kPartsKept > 0 ? G::kPartsKept : 1];

  __device__ __forceinline__ explicit BandParts(const Sequence<G>& at) : at(at) {}
  __device__ __forceinline__ void store(int slot, const BandPart& part) {
    if (slot >= G::kPartsStored) {
      kept[slot - G::kPartsStored] = {turned(part.probabilities), turned(part.gradients)};
      return;
    }
    store_block(place(0, slot, 0), part.probabilities);
    store_block(place(0, slot, 1), part.gradients);
  }
  /// `slot`: of the next warp's, if it begins with the keys before; else this warp's.
  __device__ __forceinline__ BandPart load(int slot) const {
    if (slot >= G::kPartsStored) return kept[slot - G::kPartsStored];
    const int from = slot < kFirstOwn ? at.after : 0;
    return {load_turned_block(place(from, slot, 0)), load_turned_block(place(from, slot, 1))};
  }

 private:
  __device__ __forceinline__ TileAt place(int offset, int slot, int which) const {
    const int tile = 2 * slot + which, fit = G::kRowsBytes / G::kTileBytes;
    const int memory = tile < fit ? G::kRowsBytes - at.turn + tile * G::kTileBytes
                                  : G::kMoreParts + (tile - fit) * G::kTileBytes;
    return {at.lanes, offset + memory - at.turn};
  }
};

/// dq += the near field's gradient of a tile of the warp; `parts` receive what keys need. Returns
/// <dO, near field> of rows g and g + 8: the gradient of a weight that is equal for all channels.
template <typename G>
__device__ __forceinline__ float near_query(const Band<G>& band, int tile, Blocks<G>& dq,
                                            BandParts<G>& parts) {
  const Sequence<G>& at = band.at;
  const SweepArgs& args = at.args;
  const Weights<G> weights = at.weights();
  const float factor = args.near_scale * weights.factor(G::kMaps);
  Block p[kGroups], dp[kGroups];
  float log_sum[2], dot[2] = {0.f, 0.f}, by_weight = 0.f;
#pragma unroll
  for (int r = 0; r < 2; ++r) log_sum[r] = at.log_sum_exp(tile)[row_of(2 * r)] * kLog2E;
  {
    Fragments<G> q, weighted;
    load<G>(q, at.rows(kQueries, tile));
    load<G>(weighted, at.rows(kGradients, tile));
    weights.weigh(weighted, G::kMaps);
    band.make_scores(p, q, tile);
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
      make_products<G>(dp[group], weighted, at.rows(kValues, tile - 2 + group));
  }
  uint32_t kept = 0;
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    Block factors;
    if (strips::drops<G>(args)) band.dropout(factors, tile, group);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float &x = p[group][i / 4][i % 4], &g = dp[group][i / 4][i % 4];
      if (band.is_empty(group, i / 4)) {
        x = g = 0.f;
        continue;
      }
      x = Bf16::exp2(x * band.scale - log_sum[i % 4 / 2]);
      if (strips::drops<G>(args)) {
        g *= factors[i / 4][i % 4];
        kept |= (factors[i / 4][i % 4] != 0.f ? 1u : 0u) << (group * 8 + i);
      }
      dot[i % 4 / 2] += x * g;
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    dot[r] = quad_sum(dot[r]);
    by_weight += dot[r];
    dot[r] *= factor;
  }
  BandPart part[kGroups];
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float &x = p[group][i / 4][i % 4], &g = dp[group][i / 4][i % 4];
      if (band.is_empty(group, i / 4)) continue;
      g = x * (factor * g - dot[i % 4 / 2]);
      if (strips::drops<G>(args)) x = kept >> (group * 8 + i) & 1 ? x * args.keep_factor : 0.f;
    }
    part[group] = {rounded(p[group]), rounded(dp[group])};
    add_rows_of<G>(dq, part[group].gradients, at.rows(kKeys, tile - 2 + group));
  }
  // Not group by group: loads of the next group would have to wait for what stores this one's.
#pragma unroll
  for (int group = 0; group < kGroups; ++group) parts.store(parts.slot(tile, group), part[group]);
  return by_weight;
}

/// dk and value_sum += what queries of `tile` add to sixteen keys; without the weight.
template <typename G>
__device__ __forceinline__ void near_key(const Sequence<G>& at, const BandPart& part, int tile,
                                         Blocks<G>& dk, Blocks<G>& value_sum) {
  add_rows_of<G>(dk, part.gradients, at.rows(kQueries, tile));
  add_rows_of<G>(value_sum, part.probabilities, at.rows(kGradients, tile));
}

}  // namespace fmmformer::cuda::whole
