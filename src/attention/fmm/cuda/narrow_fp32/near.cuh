// SPDX-License-Identifier: Apache-2.0
// The near field of sixteen queries: softmax over the keys of their own tile and of the two before.
//
// As in narrow/near.cuh one draw of dropout's bits is one lane's; backward, the queries' sweep
// leaves the bits for the keys'. What a tile gives to a sum has the tile's power of two, and joins
// the sum by an addition of its own.
#pragma once

#include "attention/fmm/cuda/dropout.cuh"
#include "attention/fmm/cuda/narrow_fp32/rows.cuh"

namespace fmmformer::cuda::narrow_fp32 {

/// Probabilities are at most 1: as operands, times 2^kTopOfOne.
constexpr int kTopOfOne = kTop - 1;

/// What sixteen rows see of the three tiles that end with their own. A score's sum begins with 0
/// inside the band and with -infinity outside, which no product changes; so there are no branches.
template <typename G>
struct Band {
  const Sequence<G>& at;
  float scale;  // of scores, for powers of 2

  __device__ explicit Band(const Sequence<G>& at) : at(at), scale(at.args.near_scale * kLog2E) {}
  /// By all walkers; a barrier must follow. Element i of a lane: row g + i / 2 * 8, and column
  /// 2t + i % 2 of eight. Rows are queries or, in the keys' sweep, keys.
  static __device__ void fill(const SweepArgs& args) {
#pragma unroll 1
    for (int i = threadIdx.x; i < 2 * kGroups * kWarpSize * 4; i += kTeamThreads) {
      const int group = i / 256, half = i / 128 % 2, lane = i / 4 % 32;
      const int row = lane / 4 + i % 4 / 2 * 8, column = half * 8 + lane % 4 * 2 + i % 2;
      const int apart = (2 - group) * kBlockDim + (G::kOfKeys ? column - row : row - column);
      shared_at<float>(G::kBias)[i] = apart >= 0 && apart <= args.left ? 0.f : -INFINITY;
    }
  }
  __device__ __forceinline__ void begin_scores(Block& c, int group) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float4 bias = shared_at<float4>(G::kBias)[(group * 2 + n) * kWarpSize + lane_id()];
      c[n][0] = bias.x, c[n][1] = bias.y, c[n][2] = bias.z, c[n][3] = bias.w;
    }
  }
  /// Scores of the warp's queries with the keys of a group; returns what they are to be multiplied
  /// with, for powers of 2.
  __device__ __forceinline__ float scores(Block& c, const Left (&q)[kBlocks], int shift,
                                          int group) const {
    begin_scores(c, group);
    add_rows_products(c, q, 0, group);
    const float factor = scale * power_of_2(-shift - size(0, group).shift);
    const uint32_t live = at.live(at.tile() - 2 + group);
    if (live == 0xffffu) return factor;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (!(live >> column_of(i / 4, i) & 1)) c[i / 4][i % 4] = -INFINITY;
    }
    return factor;
  }
  /// Products of the warp's rows of grad_out with the values of a group; likewise.
  __device__ __forceinline__ float products(Block& c, const Left (&grad)[kBlocks], int shift,
                                            int group) const {
    clear(c);
    add_rows_products(c, grad, 1, group);
    return power_of_2(-shift - size(1, group).shift);
  }
  /// sum += p (rows of a group), of k or v, where p has been multiplied with 2^shift.
  __device__ __forceinline__ void add_rows(Rows& sum, const Left& p, int shift, int which,
                                           int group) const {
    const uint32_t tile = at.band_tile(which, at.warp - 2 + group), lane = by_row(at.lane);
    Rows part;
    clear(part);
#pragma unroll
    for (int s = 0; s < kBlocks; ++s)
      add_product(part[s], p, load_turned_operand<Right>(tile + (lane ^ s * 32)));
    join(sum, 1.f, power_of_2(-shift - size(which, group).shift), part);
  }
  __device__ __forceinline__ const Size& size(int which, int group) const {
    return at.band_size(which, at.warp - 2 + group);
  }

 private:
  /// c += rows (rows of a group)^T, of k or v.
  __device__ __forceinline__ void add_rows_products(Block& c, const Left (&rows)[kBlocks],
                                                    int which, int group) const {
    const uint32_t tile = at.band_tile(which, at.warp - 2 + group), lane = by_column(at.lane);
#pragma unroll
    for (int s = 0; s < kBlocks; ++s)
      add_product(c, rows[s], load_operand<Right>(tile + (lane ^ s * 32)));
  }
};

/// The warp's queries or, in the keys' sweep, keys as operands.
template <typename G>
__device__ __forceinline__ void load_left(const Sequence<G>& at, Left (&x)[kBlocks], int shift) {
  Rows rows;
  load_numbers(rows, at.own_tile(0), at.lane);
  split_rows(x, rows, power_of_2(shift));
}
/// The warp's rows of grad_out, or v, times the near field's weights.
template <typename G>
__device__ __forceinline__ void load_weighed(const Sequence<G>& at, Left (&x)[kBlocks], int shift) {
  Rows rows;
  load_numbers(rows, at.own_tile(1), at.lane);
  weigh<G>(x, rows, G::kMaps, power_of_2(shift));
}

/// out = weight * softmax(...) v; writes log_sum_exp, [length].
template <typename G>
__device__ __forceinline__ void near_forward(const Band<G>& band, Rows& out, float* log_sum_exp) {
  const Sequence<G>& at = band.at;
  Block p[kGroups];
  float scale[kGroups];
  {
    Left q[kBlocks];
    const int shift = at.own_size(0).shift;
    load_left(at, q, shift);
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
      scale[group] = band.scores(p[group], q, shift, group);
  }
  float base[2], total[2], factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float peak = -INFINITY;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const Block& c = p[group];
      peak = fmaxf(peak, scale[group] * fmaxf(fmaxf(c[0][2 * r], c[0][2 * r + 1]),
                                              fmaxf(c[1][2 * r], c[1][2 * r + 1])));
    }
    peak = quad_max(peak);
    base[r] = peak == -INFINITY ? 0.f : peak;
    total[r] = 0.f;
  }
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& x = p[group][i / 4][i % 4];
      x = Bf16::exp2(x * scale[group] - base[i % 4 / 2]);
      total[i % 4 / 2] += x;
    }
  }
  if constexpr (G::kDrops) {
    const uint32_t bits = at.bits(0);
#pragma unroll
    for (int i = 0; i < kGroups * 8; ++i) {
      float& x = p[i / 8][i / 4 % 2][i % 4];
      x = bits >> i & 1 ? x : 0.f;
    }
  }
  clear(out);
#pragma unroll
  for (int group = 0; group < kGroups; ++group)
    band.add_rows(out, split_result(p[group], float(1 << kTopOfOne)), kTopOfOne, 1, group);
  const uint32_t live = at.live(at.tile());
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    total[r] = quad_sum(total[r]);
    factor[r] = total[r] > 0.f ? at.args.keep_factor * reciprocal(total[r]) : 0.f;
    const int token = at.tile() * kBlockDim + row_of(2 * r);
    if (lane_id() % 4 == 0 && token < at.args.length) {
      // Infinity for rows that saw nothing or are dead: every later exp(score - log_sum_exp) is 0.
      const bool seen = (live >> row_of(2 * r) & 1) && total[r] > 0.f;
      log_sum_exp[token] = seen ? (base[r] + __log2f(total[r])) * (1.f / kLog2E) : INFINITY;
    }
  }
  Rows sum;
  clear(sum);
  add_field(at, sum, out, factor, G::kMaps);
#pragma unroll
  for (int i = 0; i < kBlocks * 8; ++i) out[i / 8][i / 4 % 2][i % 4] = sum[i / 8][i / 4 % 2][i % 4];
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
  float scale[kGroups], unit[kGroups];
  int shift;  // of gradients of scores
  {
    Left q[kBlocks], grad[kBlocks];
    const int q_shift = at.own_size(0).shift,
              grad_shift = at.own_size(1).shift + at.weight_shift(G::kMaps);
    load_left(at, q, q_shift), load_weighed(at, grad, at.own_size(1).shift);
    int value_shift = band.size(1, 0).shift;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      scale[group] = band.scores(p[group], q, q_shift, group);
      unit[group] = band.products(dp[group], grad, grad_shift, group);
      value_shift = min(value_shift, band.size(1, group).shift);
    }
    shift = grad_shift + value_shift - kDown - 1;  // a difference of two products
  }
  float dot[2] = {0.f, 0.f};
  if constexpr (G::kDrops) {
    const uint32_t bits = at.bits(0);
#pragma unroll
    for (int i = 0; i < kGroups * 8; ++i) {
      float& g = dp[i / 8][i / 4 % 2][i % 4];
      g = bits >> i & 1 ? g : 0.f;
    }
    record[G::kKept * kBlockDim + at.lane] = __uint_as_float(bits);
  }
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    float part[2] = {0.f, 0.f};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& x = p[group][i / 4][i % 4];
      x = Bf16::exp2(x * scale[group] - log_sum[i % 4 / 2]);
      part[i % 4 / 2] += x * dp[group][i / 4][i % 4];
    }
    dot[0] += unit[group] * part[0], dot[1] += unit[group] * part[1];
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
      x *= unit[group] * dp[group][i / 4][i % 4] - dot[i % 4 / 2];
    }
    band.add_rows(dq, split_result(p[group], power_of_2(shift)), shift, 0, group);
  }
  const float factor = at.args.near_scale * at.args.keep_factor;
#pragma unroll
  for (int i = 0; i < kBlocks * 8; ++i) dq[i / 8][i / 4 % 2][i % 4] *= factor;
}

/// sum += a (rows of a tile), where a and the rows have been multiplied with 2^shift together.
__device__ __forceinline__ void add_tile(Rows& sum, const Left& a, int shift, uint32_t tile,
                                         int lane) {
  Rows part;
  clear(part);
#pragma unroll
  for (int s = 0; s < kBlocks; ++s)
    add_product(part[s], a, load_turned_operand<Right>(tile + (by_row(lane) ^ s * 32)));
  join(sum, 1.f, power_of_2(-shift), part);
}
/// Of the lane's keys g and g + 8 and its queries 2t and 2t + 1, of eight or of the next eight,
/// which are kept: of query % 2, bits 4 * (key / 8) + 2 * (query / 8). In the queries' sweep they
/// were another lane's.
__device__ __forceinline__ void turn_bits(uint32_t (&bits)[2], uint32_t kept) {
  const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) bits[i] = __shfl_sync(~0u, kept, (2 * t + i) * 4 + g / 2) >> g % 2;
}

/// dk = the near field's gradient of the warp's keys, and value_sum that of v before its weight:
/// from the queries of their own tile and of the two after.
template <typename G>
__device__ __forceinline__ void near_key(const Band<G>& band, Rows& dk, Rows& value_sum) {
  const Sequence<G>& at = band.at;
  Left k[kBlocks], v[kBlocks];
  const int k_shift = at.own_size(0).shift,
            v_shift = at.own_size(1).shift + at.weight_shift(G::kMaps);
  load_left(at, k, k_shift), load_weighed(at, v, at.own_size(1).shift);
  const uint32_t live_keys = at.live(at.tile());
  clear(dk), clear(value_sum);
#pragma unroll
  for (int later = 0; later < kGroups; ++later) {
    const int tile = at.tile() + later, group = kGroups - 1 - later;
    if (tile * kBlockDim >= at.args.length) continue;
    const float* numbers = at.numbers(0, at.warp + later);
    uint32_t bits[2] = {};
    if constexpr (G::kDrops)
      turn_bits(bits, __float_as_uint(numbers[G::kKept * kBlockDim + at.lane]) >> group * 8);
    float2 log_sum[2], dot[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float* columns = numbers + n * 8 + lane_id() % 4 * 2;
      log_sum[n] = *reinterpret_cast<const float2*>(columns + G::kLogSumExp * kBlockDim);
      dot[n] = *reinterpret_cast<const float2*>(columns + G::kNearDots * kBlockDim);
    }
    const uint32_t q_tile = at.band_tile(0, at.warp + later),
                   grad_tile = at.band_tile(1, at.warp + later);
    const int q_shift = at.band_size(0, at.warp + later).shift,
              grad_shift = at.band_size(1, at.warp + later).shift;
    Block p, dp;
    band.begin_scores(p, group), clear(dp);
#pragma unroll
    for (int s = 0; s < kBlocks; ++s) {
      const uint32_t lane = by_column(at.lane) ^ s * 32;
      add_product(p, k[s], load_operand<Right>(q_tile + lane));
      add_product(dp, v[s], load_operand<Right>(grad_tile + lane));
    }
    if (live_keys != 0xffffu) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (!(live_keys >> row_of(i % 4) & 1)) p[i / 4][i % 4] = -INFINITY;
      }
    }
    // A row's dot may come from larger values than this tile's.
    const float largest =
        fmaxf(fmaxf(fabsf(dot[0].x), fabsf(dot[0].y)), fmaxf(fabsf(dot[1].x), fabsf(dot[1].y)));
    const int shift = min(grad_shift + v_shift - kDown, shift_for(warp_max(largest))) - 1;
    const float scale = band.scale * power_of_2(-q_shift - k_shift),
                product_scale = power_of_2(-grad_shift - v_shift);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int n = i / 4;
      float &x = p[n][i % 4], &g = dp[n][i % 4];
      x = Bf16::exp2(x * scale - (i % 2 ? log_sum[n].y : log_sum[n].x));
      const bool keeps = !G::kDrops || (bits[i % 2] & 1u << (i % 4 / 2 * 4 + n * 2)) != 0;
      g = x * ((keeps ? g : 0.f) * product_scale - (i % 2 ? dot[n].y : dot[n].x));
      x = keeps ? x : 0.f;
    }
    add_tile(value_sum, split_result(p, float(1 << kTopOfOne)), kTopOfOne + grad_shift, grad_tile,
             at.lane);
    add_tile(dk, split_result(dp, power_of_2(shift)), shift + q_shift, q_tile, at.lane);
  }
  const float keep = at.args.keep_factor, factor = at.args.near_scale * keep;
#pragma unroll
  for (int i = 0; i < kBlocks * 8; ++i)
    dk[i / 8][i / 4 % 2][i % 4] *= factor, value_sum[i / 8][i / 4 % 2][i % 4] *= keep;
}

}  // namespace fmmformer::cuda::narrow_fp32
