// SPDX-License-Identifier: Apache-2.0
// The near field of sixteen queries: softmax over the keys of their own tile and of the two before.
//
// Of sixteen keys a lane has four neighbours, 4t to 4t + 3, for each of its two queries: rows of k
// and v are loaded in that order. One draw of dropout's bits is then one lane's, with nothing to
// exchange. Lanes 0 and 1 of four have the first two neighbours in the first half of the columns,
// lanes 2 and 3 in the second: eight rows of a half are then in different banks. Backward, the
// queries' sweep leaves the bits for the keys'.
#pragma once

#include "attention/fmm/cuda/dropout.cuh"
#include "attention/fmm/cuda/narrow/operands.cuh"

namespace fmmformer::cuda::narrow {

/// The key of sixteen that is number `i` of the eight in half `half` of the columns.
__device__ __forceinline__ uint32_t key_of(uint32_t half, uint32_t i) {
  return i / 2 * 4 + (half ^ i / 4) * 2 + i % 2;
}
/// What a lane adds to a tile's address to load keys in that order: for scores; and turned.
__device__ __forceinline__ uint32_t by_key(uint32_t lane) {
  return place(key_of(lane / 16, lane % 8), lane / 8 % 2);
}
__device__ __forceinline__ uint32_t by_turned_key(uint32_t lane) {
  return place(key_of(lane / 8 % 2, lane % 8), lane / 16);
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
  /// By all threads; a barrier must follow. Element i of a lane: row g + i / 2 * 8, and column
  /// number 2t + i % 2 of the eight.
  static __device__ void fill(const SweepArgs& args) {
#pragma unroll 1
    for (int i = threadIdx.x; i < 2 * kGroups * kWarpSize; i += blockDim.x) {
      const uint32_t group = i / 64, half = i / 32 % 2, lane = i % 32, number = lane % 4 * 2;
      const uint32_t key =
          group * kBlockDim + (G::kOfKeys ? half * 8 + number : key_of(half, number));
      // Of the first; the others are a column, eight rows, and both further.
      const int apart = int(lane / 4) + 2 * kBlockDim - int(key);
      const auto bias = [&](int tokens) {
        return tokens >= 0 && tokens <= args.left ? 0.f : -INFINITY;
      };
      shared_at<float4>(G::kBias)[i] =
          make_float4(bias(apart), bias(apart - 1), bias(apart + 8), bias(apart + 7));
    }
  }
  __device__ __forceinline__ void begin_scores(Block& c, int group) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float4 bias = shared_at<float4>(G::kBias)[(group * 2 + n) * kWarpSize + at.lane];
      c[n][0] = bias.x, c[n][1] = bias.y, c[n][2] = bias.z, c[n][3] = bias.w;
    }
  }
  /// Scores of the warp's queries with the keys of a group.
  __device__ __forceinline__ void scores(Block& c, const Fragments& q, int group) const {
    begin_scores(c, group);
    const uint32_t tile = at.band_tile(0, at.warp - 2 + group), lane = by_key(at.lane);
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
      const uint32_t key = key_of(i / 4 % 2, at.quad() * 2 + i % 2);
      if (!(live[i / 8] >> key & 1)) c[i / 8][i / 4 % 2][i % 4] = -INFINITY;
    }
  }
  /// Products of the warp's rows of grad_out with the values of a group.
  __device__ __forceinline__ void products(Block& c, const Fragments& grad, int group) const {
    const uint32_t tile = at.band_tile(1, at.warp - 2 + group), lane = by_key(at.lane);
    begin_product(c, grad[0], of_right(load_matrix(tile + lane)));
    add_product(c, grad[1], of_right(load_matrix(tile + (lane ^ 32))));
  }
  /// sum += p (rows of a group), of k or v.
  __device__ __forceinline__ void add_rows(Rows& sum, const Fragment& p, int which,
                                           int group) const {
    const uint32_t tile = at.band_tile(which, at.warp - 2 + group), lane = by_turned_key(at.lane);
#pragma unroll
    for (int s = 0; s < kBlocks; ++s)
      add_product(sum[s], p, of_right(load_turned_matrix(tile + (lane ^ s * 32))));
  }
  /// Which elements are kept: bit group * 8 + i, i as in a Block.
  __device__ __forceinline__ uint32_t draw_bits() const {
    PhiloxBlock draws[kDraws];
    draw(draws);
    // What is kept carries, and the carry is the next bit: two instructions. Halves side by side.
    const uint32_t limit = 0u - at.args.drop_below;
    constexpr int kHalf = kGroups * 4;
    uint32_t low = 0, high = 0;
#pragma unroll
    for (int i = kHalf - 1; i >= 0; --i)
      add_bit(low, word_of(draws, i), limit), add_bit(high, word_of(draws, kHalf + i), limit);
    const uint32_t bits = high << kHalf | low, halves = 0x0f0f0fu;
    return at.quad() < 2 ? bits : (bits & halves) << 4 | (bits >> 4 & halves);
  }

 private:
  static constexpr int kDraws = 2 * kGroups - 1;

  static __device__ __forceinline__ void add_bit(uint32_t& bits, uint32_t word, uint32_t limit) {
    asm("{\n.reg .u32 sum;\nadd.cc.u32 sum, %1, %2;\naddc.u32 %0, %0, %0;\n}\n"
        : "+r"(bits)
        : "r"(word), "r"(limit));
  }
  /// What an element, group * 8 + its number in a Block, has of the draws in a quad's first lanes.
  static __device__ __forceinline__ uint32_t word_of(const PhiloxBlock (&draws)[kDraws], int i) {
    const int draw = i / 8 * 2 + i / 2 % 2;
    return draws[draw == 4 ? 1 : draw == 5 ? 4 : draw].word[i / 4 % 2 * 2 + i % 2];
  }
  /// Of the oldest group's lower rows a lane sees nothing where it sees something of its own
  /// group's upper rows, and the other way round: one draw serves both.
  __device__ __forceinline__ void draw(PhiloxBlock (&draws)[kDraws]) const {
    const int quad = int(at.quad()), first = (at.tile() - 2) * 4 + quad,
              query = at.tile() * kBlockDim + int(at.row(0));
#pragma unroll
    for (int i = 0; i < kDraws; ++i) {
      // Group i / 2 and rows g + i % 2 * 8; the last: see above.
      const bool shared = i == 1;
      const int group = shared ? (quad < 2 ? 2 : 0) : (i == 4 ? 2 : i / 2),
                row = shared ? (quad < 2 ? 0 : 8) : (i == 4 ? 8 : i % 2 * 8);
      draws[i] = {{static_cast<uint32_t>(first + group * 4), static_cast<uint32_t>(query + row),
                   static_cast<uint32_t>(at.pair), 0}};
    }
    philox_blocks(draws);
  }
  /// philox_block of them all, round by round, so that there is one key at a time.
  template <int kCount>
  __device__ __forceinline__ void philox_blocks(PhiloxBlock (&draws)[kCount]) const {
    uint32_t keys[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
#pragma unroll
    for (int round = 0; round < kPhiloxRounds; ++round) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) draws[i] = philox_round(draws[i], keys[0], keys[1]);
      keys[0] += kPhiloxKeyStep0, keys[1] += kPhiloxKeyStep1;
      // Not computed anew for every draw.
      asm volatile("" : "+r"(keys[0]), "+r"(keys[1]));
    }
  }
};

/// out = weight * softmax(...) v; keeps log_sum_exp, for powers of 2, and writes it.
template <typename G>
__device__ __forceinline__ void near_forward(const Band<G>& band, Rows& out, float* log_sum_exp) {
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
  float base[2], total[2], factor[2], log_sum[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float peak = -INFINITY;
#pragma unroll
    for (int i = 0; i < kGroups * 4; ++i) peak = fmaxf(peak, p[i / 4][i / 2 % 2][2 * r + i % 2]);
    peak = quad_max(peak);
    base[r] = peak == -INFINITY ? 0.f : peak * band.scale;
    total[r] = 0.f;
  }
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& x = p[group][i / 4][i % 4];
      x = Bf16::exp2(x * band.scale - base[i % 4 / 2]);
      total[i % 4 / 2] += x;
    }
  }
  if constexpr (G::kDrops) {
    const uint32_t bits = band.draw_bits();
#pragma unroll
    for (int i = 0; i < kGroups * 8; ++i) {
      float& x = p[i / 8][i / 4 % 2][i % 4];
      x = bits & 1u << i ? x : 0.f;
    }
    at.kept(Entry::bits(G::kMaps), kWarpSize)[at.lane] = __uint_as_float(bits);
  }
  clear(out);
#pragma unroll
  for (int group = 0; group < kGroups; ++group) band.add_rows(out, rounded(p[group]), 1, group);
  const uint32_t live = live_keys[kGroups - 1];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    total[r] = quad_sum(total[r]);
    factor[r] = total[r] > 0.f ? at.args.keep_factor * reciprocal(total[r]) : 0.f;
    log_sum[r] = total[r] > 0.f ? base[r] + __log2f(total[r]) : INFINITY;
  }
  // A lane for each row; two more have the same numbers.
  const uint32_t r = at.quad() % 2, row = at.row(0) + r * 8;
  // Infinity for rows that saw nothing or are dead: every later exp(score - log_sum_exp) is 0.
  const float mine = live >> row & 1 ? (r ? log_sum[1] : log_sum[0]) : INFINITY;
  at.kept(Entry::log_sums(G::kMaps), kBlockDim)[row] = mine;
  const int token = at.tile() * kBlockDim + int(row);
  store_if(token < at.args.length && at.quad() < 2, log_sum_exp + token, mine * (1.f / kLog2E));
  const float* weights = at.weights(G::kMaps) + at.quad() * 2;
#pragma unroll
  for (int n = 0; n < kBlocks * 2; ++n) {
    const float2 w = *reinterpret_cast<const float2*>(weights + n * 8);
#pragma unroll
    for (int i = 0; i < 4; ++i) out[n / 2][n % 2][i] *= (i % 2 ? w.y : w.x) * factor[i / 2];
  }
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
    const uint32_t bits = band.draw_bits();
#pragma unroll
    for (int i = 0; i < kGroups * 8; ++i) {
      float& g = dp[i / 8][i / 4 % 2][i % 4];
      g = bits & 1u << i ? g : 0.f;
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
    uint32_t kept = 0;
    if constexpr (G::kDrops)
      kept = __float_as_uint(numbers[G::kKept * kBlockDim + at.lane]) >> group * 8;
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
    uint32_t bits[2] = {~0u, ~0u};
    if constexpr (G::kDrops) {
      // The queries' sweep had four neighbouring keys in a lane.
#pragma unroll
      for (int n = 0; n < 2; ++n)
        bits[n] = __shfl_sync(~0u, kept, (lane_id() & ~3) + n * 2 + lane_id() % 4 / 2) >>
                  ((lane_id() % 2) ^ n) * 4;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float &x = p[i / 4][i % 4], &g = dp[i / 4][i % 4];
      x = Bf16::exp2(x * band.scale - log_sum[i % 4 / 2]);
      const bool keeps = !G::kDrops || (bits[i / 4] & 1u << i % 4) != 0;
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
