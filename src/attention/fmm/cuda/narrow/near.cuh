// SPDX-License-Identifier: Apache-2.0
// The near field of sixteen queries: softmax over the keys of their own tile and of the two before.
//
// One draw of dropout's bits is what a lane holds of sixteen keys (attention/philox.h). Of the 48
// keys a query sees at most forty: the last eight are after the first eight queries, and the first
// eight are too far from the last eight. Backward, the queries' sweep leaves the bits for the
// keys'.
#pragma once

#include "attention/fmm/cuda/dropout.cuh"
#include "attention/fmm/cuda/narrow/operands.cuh"

namespace fmmformer::cuda::narrow {

/// Whether no query sees what element i of a group's Block holds: see above.
__device__ __forceinline__ constexpr bool is_unseen(int group, int i) {
  const bool upper_keys = i / 4 == 1, upper_queries = i % 4 / 2 == 1;
  return (group == 0 && !upper_keys && upper_queries) ||
         (group == kGroups - 1 && upper_keys && !upper_queries);
}
/// Dropout's bits of a lane: where those of register r of a group's Fragment are, the pair's second
/// sixteen further. Of two registers the pairs are the same places of bytes: see Band::drop.
__device__ __forceinline__ constexpr uint32_t kept_bits(int group, int r) {
  return 0x10001u << (r % 2 * 8 + 7 - (group * 2 + r / 2));
}
__device__ __forceinline__ constexpr uint32_t kept_bit(int group, int i) {
  return kept_bits(group, i / 4 * 2 + i % 4 / 2) & (i % 2 ? 0xffff0000u : 0xffffu);
}

/// What sixteen rows see of the three tiles that end with their own. A score's sum begins with 0
/// inside the band and with -infinity outside, which no product changes; so there are no branches.
template <typename G>
struct Band {
  const Sequence<G>& at;
  float scale;  // of scores, for powers of 2
  uint64_t seed;

  __device__ explicit Band(const Sequence<G>& at) : at(at), scale(at.args.near_scale * kLog2E) {
    // The same in every lane, as the compiler sees from the shuffle.
    seed = G::kDrops ? __shfl_sync(~0u, dropout_seed(at.args), 0) : 0;
  }
  /// By all threads; a barrier must follow. Of eight keys and the first eight queries, for a lane's
  /// two; eight later queries see of the eight keys after them the same.
  static __device__ void fill(const SweepArgs& args) {
#pragma unroll 1
    for (int i = threadIdx.x; i < kSeenEights * kWarpSize; i += blockDim.x) {
      const int lane = i % kWarpSize;
      const int apart = lane / 4 + 2 * kBlockDim - (i / kWarpSize * 8 + lane % 4 * 2);
      const auto bias = [&](int tokens) {
        return tokens >= 0 && tokens <= args.left ? 0.f : -INFINITY;
      };
      shared_at<float2>(G::kBias)[i] = make_float2(bias(apart), bias(apart - 1));
    }
  }
  __device__ __forceinline__ void begin_scores(Block& c, int group) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int eight = group * 2 + i / 2 - i % 2;
      const bool seen = eight >= 0 && eight < kSeenEights;
      const float2 bias = seen ? shared_at<float2>(G::kBias)[eight * kWarpSize + at.lane]
                               : make_float2(-INFINITY, -INFINITY);
      c[i / 2][i % 2 * 2] = bias.x, c[i / 2][i % 2 * 2 + 1] = bias.y;
    }
  }
  /// Scores of the warp's queries with the keys of a group.
  __device__ __forceinline__ void scores(Block& c, const Fragments& q, int group) const {
    begin_scores(c, group);
    const uint32_t tile = at.band_tile(0, at.warp - 2 + group), lane = by_column(at.lane);
#pragma unroll
    for (int s = 0; s < kBlocks; ++s)
      add_product(c, q[s], of_right(load_matrix(tile + (lane ^ s * 32))));
  }
  /// Bits of the groups' live keys.
  __device__ __forceinline__ void find_live(uint32_t (&live)[kGroups]) const {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) live[group] = at.live(at.tile() - 2 + group);
  }
  /// Dead keys are seen by nobody.
  __device__ __forceinline__ void hide_dead(Block (&c)[kGroups],
                                            const uint32_t (&live)[kGroups]) const {
    static_assert(kGroups == 3);
    if ((live[0] & live[1] & live[2]) == 0xffffu) return;
#pragma unroll
    for (int i = 0; i < kGroups * 8; ++i) {
      const uint32_t key = i / 4 % 2 * 8 + at.quad() * 2 + i % 2;
      if (!(live[i / 8] >> key & 1)) c[i / 8][i / 4 % 2][i % 4] = -INFINITY;
    }
  }
  /// Products of the warp's rows of grad_out with the values of a group.
  __device__ __forceinline__ void products(Block& c, const Fragments& grad, int group) const {
    const uint32_t tile = at.band_tile(1, at.warp - 2 + group), lane = by_column(at.lane);
    begin_product(c, grad[0], of_right(load_matrix(tile + lane)));
    add_product(c, grad[1], of_right(load_matrix(tile + (lane ^ 32))));
  }
  /// sum += p (rows of a group), of k or v.
  __device__ __forceinline__ void add_rows(Rows& sum, const Fragment& p, int which,
                                           int group) const {
    const uint32_t tile = at.band_tile(which, at.warp - 2 + group), lane = by_row(at.lane);
#pragma unroll
    for (int s = 0; s < kBlocks; ++s)
      add_product(sum[s], p, of_right(load_turned_matrix(tile + (lane ^ s * 32))));
  }
  /// Draws which probabilities of a tile's queries, counted from the sequence's first, are kept:
  /// those of a group, or all. See kept_bits.
  __device__ __forceinline__ uint32_t draw(int tile, int group) const {
    const PhiloxBlock block = philox_block(
        lane_counter(tile * kBlockDim, (tile - 2 + group) * kBlockDim, at.pair, at.lane), seed);
    const uint32_t below = at.args.drop_below * 0x10001u;
    uint32_t bits = 0;
#pragma unroll
    for (int r = 0; r < 4; ++r)
      bits |= at_least(block.word[r % 2 * 2 + r / 2], below) & kept_bits(0, r);
    return bits >> group * 2;
  }
  __device__ __forceinline__ uint32_t draw(int tile) const {
    uint32_t bits = 0;
#pragma unroll 1
    for (int group = 0; group < kGroups; ++group) bits |= draw(tile, group);
    return bits;
  }
  /// Zeros for those that are not kept. A shift brings the bits of two registers to the highest of
  /// their bytes, which prmt makes bytes of.
  static __device__ __forceinline__ void drop(Fragment (&f)[kGroups], uint32_t bits) {
#pragma unroll
    for (int i = 0; i < kGroups * 4; ++i) {
      uint32_t kept;
      asm("prmt.b32 %0, %1, 0, %2;\n"
          : "=r"(kept)
          : "r"(bits << i / 2), "r"(i % 2 ? 0xbb99 : 0xaa88));
      f[i / 4].r[i % 4] &= kept;
    }
  }

 private:
  static constexpr int kSeenEights = 2 * kGroups - 1;  // that a query may see

  /// All bits of each half of which the lower fifteen are not below `limit`: as fp16 numbers have
  /// the order of their bits. Those above infinity compare with nothing, and are kept.
  static __device__ __forceinline__ uint32_t at_least(uint32_t word, uint32_t limit) {
    uint32_t kept;
    asm("{\n.reg .b32 bits;\nabs.f16x2 bits, %1;\nset.geu.u32.f16x2 %0, bits, %2;\n}\n"
        : "=r"(kept)
        : "r"(word), "r"(limit));
    return kept;
  }
};

/// What the powers of a row's scores are relative to, so that their sum is neither 0 nor infinite:
/// the score with the row's own key or, `peak`, the largest.
template <typename G>
__device__ __forceinline__ void find_bases(const Band<G>& band, const Block (&scores)[kGroups],
                                           bool peak, float (&base)[2]) {
  if (peak) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      base[r] = -INFINITY;
#pragma unroll
      for (int i = 0; i < kGroups * 8; ++i) {
        if (i % 4 / 2 == r && !is_unseen(i / 8, i % 8))
          base[r] = fmaxf(base[r], scores[i / 8][i / 4 % 2][i % 4]);
      }
      base[r] = quad_max(base[r]);
    }
  } else {
    const uint32_t row = band.at.lane / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float* own = scores[kGroups - 1][r] + 2 * r;
      base[r] = __shfl_sync(~0u, row % 2 ? own[1] : own[0], row * 4 + row / 2);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) base[r] = base[r] == -INFINITY ? 0.f : base[r] * band.scale;
}

/// out = weight * softmax(...) v, of the probabilities that are `kept` (Band::draw); keeps
/// log_sum_exp, for powers of 2. Returns whether no row has scores that are too far above its base:
/// else nothing of this is of use.
template <typename G>
__device__ __forceinline__ bool near_forward(const Band<G>& band, uint32_t kept, bool peak,
                                             Rows& out) {
  const Sequence<G>& at = band.at;
  Block p[kGroups];
  uint32_t live_keys[kGroups];
  band.find_live(live_keys);
  {
    Fragments q;
    load_rows(q, at.own_tile(0), by_row(at.lane));
#pragma unroll
    for (int group = 0; group < kGroups; ++group) band.scores(p[group], q, group);
  }
  band.hide_dead(p, live_keys);
  float base[2], factor[2], log_sum[2];
  find_bases(band, p, peak, base);
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& x = p[group][i / 4][i % 4];
      x = is_unseen(group, i) ? 0.f : Bf16::exp2(x * band.scale - base[i % 4 / 2]);
    }
  }
  Fragment probabilities[kGroups];
#pragma unroll
  for (int group = 0; group < kGroups; ++group) probabilities[group] = rounded(p[group]);
  float totals[4];  // of what the products with v add up: every lane has its rows'
  Bf16::begin(totals, probabilities[0], {{kOnes, kOnes}});
#pragma unroll
  for (int group = 1; group < kGroups; ++group)
    Bf16::multiply(totals, probabilities[group], {{kOnes, kOnes}});
  if constexpr (G::kDrops) {
    at.kept(Entry::bits(G::kMaps), kWarpSize)[at.lane] = __uint_as_float(kept);
    band.drop(probabilities, kept);
  }
  clear(out);
#pragma unroll
  for (int group = 0; group < kGroups; ++group) band.add_rows(out, probabilities[group], 1, group);
  const uint32_t live = live_keys[kGroups - 1];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float total = totals[2 * r];
    factor[r] = total > 0.f ? at.args.keep_factor * reciprocal(total) : 0.f;
    log_sum[r] = total > 0.f ? base[r] + log2_of(total) : INFINITY;
  }
  // A lane for each row; two more have the same numbers.
  const uint32_t r = at.quad() % 2, row = at.row(0) + r * 8;
  // Infinity for rows that saw nothing or are dead: every later exp(score - log_sum_exp) is 0.
  const float mine = live >> row & 1 ? (r ? log_sum[1] : log_sum[0]) : INFINITY;
  at.kept(Entry::log_sums(G::kMaps), kBlockDim)[row] = mine;
#pragma unroll
  for (int s = 0; s < kBlocks; ++s) {
    const float4 w = at.weights(G::kMaps, s);
    const float of_channel[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int i = 0; i < 8; ++i)
      out[s][i / 4][i % 4] *= of_channel[i / 4 * 2 + i % 2] * factor[i % 4 / 2];
  }
  constexpr float kLargest = 1e15f;  // so that sums over v of up to 1e23 are numbers, too
  return peak || __all_sync(~0u, fmaxf(totals[0], totals[2]) < kLargest);
}
/// To seek the largest score takes a twentieth of forward, and is hardly ever needed.
template <typename G>
__device__ __forceinline__ void near_forward(const Band<G>& band, uint32_t kept, Rows& out) {
  bool peak = false;
#pragma unroll 1
  while (!near_forward(band, kept, peak, out)) peak = true;
}

/// dq = the near field's gradient. Leaves in the tile's record: log_sum_exp; row dots
/// sum_j p_ij dp_ij, without the factor that scores and kept probabilities have; dropout's bits.
template <typename G>
__device__ __forceinline__ void near_query(const Band<G>& band, Rows& dq) {
  const Sequence<G>& at = band.at;
  const uint32_t live = at.live(at.tile());
  float* record = at.record(at.tile());
  float log_sum[2];
#pragma unroll
  for (int r = 0; r < 2; ++r)
    log_sum[r] = live >> row_of(2 * r) & 1
                     ? at.numbers(G::kLogSumExp, at.warp)[row_of(2 * r)] * kLog2E
                     : INFINITY;
  Block p[kGroups], dp[kGroups];
  {
    Fragments q, grad;
    load_rows(q, at.own_tile(0), by_row(at.lane));
    load_rows(grad, at.own_tile(1), by_row(at.lane));
    weigh(at, grad, G::kMaps);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      band.scores(p[group], q, group);
      band.products(dp[group], grad, group);
    }
  }
  uint32_t live_keys[kGroups];
  band.find_live(live_keys);
  band.hide_dead(p, live_keys);
  float dot[2] = {0.f, 0.f};
  if constexpr (G::kDrops) {
    const uint32_t bits = band.draw(at.tile());
#pragma unroll
    for (int i = 0; i < kGroups * 8; ++i) {
      float& g = dp[i / 8][i / 4 % 2][i % 4];
      g = bits & kept_bit(i / 8, i % 8) ? g : 0.f;
    }
    record[G::kKept * kBlockDim + at.lane] = __uint_as_float(bits);
  }
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& x = p[group][i / 4][i % 4];
      x = Bf16::exp2(x * band.scale - log_sum[i % 4 / 2]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) dot[i % 4 / 2] += p[group][i / 4][i % 4] * dp[group][i / 4][i % 4];
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    dot[r] = quad_sum(dot[r]);
    if (lane_id() % 4 == 0) {
      record[G::kLogSumExp * kBlockDim + row_of(2 * r)] = log_sum[r];
      record[G::kNearDots * kBlockDim + row_of(2 * r)] = dot[r];
    }
  }
  clear(dq);
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& x = p[group][i / 4][i % 4];
      x *= dp[group][i / 4][i % 4] - dot[i % 4 / 2];
    }
    band.add_rows(dq, rounded(p[group]), 0, group);
  }
  const float factor = at.args.near_scale * at.args.keep_factor;
#pragma unroll
  for (int i = 0; i < kBlocks * 8; ++i) dq[i / 8][i / 4 % 2][i % 4] *= factor;
}

/// dk = the near field's gradient of the warp's keys, and value_sum that of v before its weight:
/// from the queries of their own tile and of the two after.
template <typename G>
__device__ __forceinline__ void near_key(const Band<G>& band, Rows& dk, Rows& value_sum) {
  const Sequence<G>& at = band.at;
  Fragments k, v;  // in the keys' own order
#pragma unroll
  for (int s = 0; s < kBlocks; ++s) {
    k[s] = of_right(load_matrix(at.own_tile(0) + (by_column(at.lane) ^ s * 32)));
    v[s] = of_right(load_matrix(at.own_tile(1) + (by_column(at.lane) ^ s * 32)));
  }
  weigh(at, v, G::kMaps);
  const uint32_t live_keys = at.live(at.tile());
  clear(dk), clear(value_sum);
#pragma unroll
  for (int later = 0; later < kGroups; ++later) {
    const int tile = at.tile() + later, group = kGroups - 1 - later;
    if (tile * kBlockDim >= at.args.length) continue;
    const float* numbers = at.numbers(0, at.warp + later);
    uint32_t kept = ~0u;
    if constexpr (G::kDrops) kept = __float_as_uint(numbers[G::kKept * kBlockDim + at.lane]);
    float log_sum[2], dot[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      log_sum[r] = numbers[G::kLogSumExp * kBlockDim + row_of(2 * r)];
      dot[r] = numbers[G::kNearDots * kBlockDim + row_of(2 * r)];
    }
    const uint32_t q_tile = at.band_tile(0, at.warp + later),
                   grad_tile = at.band_tile(1, at.warp + later);
    Block p, dp;
    band.begin_scores(p, group);
    {
      Fragments q, grad;
      load_rows(q, q_tile, by_row(at.lane)), load_rows(grad, grad_tile, by_row(at.lane));
      add_product(p, q[0], k[0]), add_product(p, q[1], k[1]);
      begin_product(dp, grad[0], v[0]), add_product(dp, grad[1], v[1]);
    }
    if (live_keys != 0xffffu) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (!(live_keys >> column_of(i / 4, i) & 1)) p[i / 4][i % 4] = -INFINITY;
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float &x = p[i / 4][i % 4], &g = dp[i / 4][i % 4];
      x = Bf16::exp2(x * band.scale - log_sum[i % 4 / 2]);
      const bool keeps = !G::kDrops || (kept & kept_bit(group, i)) != 0;
      g = x * ((keeps ? g : 0.f) - dot[i % 4 / 2]);
      x = keeps ? x : 0.f;
    }
    const Fragment probabilities = turned(rounded(p)), gradients = turned(rounded(dp));
#pragma unroll
    for (int s = 0; s < kBlocks; ++s) {
      const uint32_t lane = by_row(at.lane) ^ s * 32;
      add_product(value_sum[s], probabilities, of_right(load_turned_matrix(grad_tile + lane)));
      add_product(dk[s], gradients, of_right(load_turned_matrix(q_tile + lane)));
    }
  }
  const float keep = at.args.keep_factor, factor = at.args.near_scale * keep;
#pragma unroll
  for (int i = 0; i < kBlocks * 8; ++i)
    dk[i / 8][i / 4 % 2][i % 4] *= factor, value_sum[i / 8][i / 4 % 2][i % 4] *= keep;
}

}  // namespace fmmformer::cuda::narrow
