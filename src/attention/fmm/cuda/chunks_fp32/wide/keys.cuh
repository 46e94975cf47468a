// SPDX-License-Identifier: Apache-2.0
// The key sweep of heads of up to 128 channels. The formulas are those of docs/math.md.
#pragma once

#include "attention/fmm/cuda/chunks_fp32/wide/forward.cuh"

namespace fmmformer::cuda::chunks_fp32 {

/// The shifts of gradients of scores: of the near field's, and of the far field's.
template <typename G>
__device__ __forceinline__ int near_slope_shift(const Walk<G, Sweep::kKeys>& walk, float factor) {
  const float dots_beside =
      Scaling<Memory<G, Sweep::kKeys>>::maximum(walk.set() ^ 1, kDots + Wide::kMaps);
  return shift_for(fabsf(factor) * walk.args.keep_factor * largest_product(walk) +
                   fmaxf(walk.maximum(kDots + Wide::kMaps), dots_beside));
}
template <typename G>
__device__ __forceinline__ int far_slope_shift(const Walk<G, Sweep::kKeys>& walk) {
  return shift_for(largest_product(walk) + walk.maximum(kDots));
}

/// One group of a tile's near field, from g = v grad_out^T with its shift: weight * probabilities
/// as dropout leaves them, and gradients of scores, as operands.
template <typename G>
__device__ __forceinline__ void make_near_operands(const Block& g, int group,
                                                   const Walk<G, Sweep::kKeys>& walk,
                                                   const Band<Sweep::kKeys>& band,
                                                   const Loader<G>& load, float weight,
                                                   float to_operand) {
  using S = State<G, Sweep::kKeys>;
  const int own = walk.place.tile, tile = own + group;
  const float factor = walk.args.near_scale * weight;
  const float g_factor = factor * power_of_2(-product_shift(walk)), scale = score_scale(walk, band);
  Block p, a;
  multiply_tiles(p, walk.own_tile(0), walk.tile(0, tile), load);
  const uint32_t kept = kept_bits(walk, band, group);
  const uint32_t inside = band.inside(group, walk.live_bits(tile));
  float2 log_sums[2], dots[2];
  S::column_numbers(log_sums, walk.numbers(kLogSumExp, tile));
  S::column_numbers(dots, walk.numbers(kDot<G> + Wide::kMaps, tile));
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float left = kept_factor(kept, 0, i, walk.args);
    const float log_sum = (i % 2 ? log_sums[i / 4].y : log_sums[i / 4].x) * kLog2E;
    const float dot = i % 2 ? dots[i / 4].y : dots[i / 4].x;
    float& element = p[i / 4][i % 4];
    element = inside >> i & 1 ? element : -INFINITY;
    element = Bf16::exp2(element * scale - log_sum);
    a[i / 4][i % 4] = weight * left * element;
    element *= g_factor * left * g[i / 4][i % 4] - dot;
  }
  using Operands = chunks_fp32::Operands<Sweep::kKeys>;
  Operands::store(own, kNearScores + group, split_result(a, to_operand));
  Operands::store(own, kNearSlopes + group,
                  split_result(p, power_of_2(near_slope_shift(walk, factor))));
}
/// One group of a tile's far field, from g as above: g - dot as an operand.
template <typename G>
__device__ __forceinline__ void make_far_slopes(const Block& g, int group,
                                                const Walk<G, Sweep::kKeys>& walk) {
  const int shift = far_slope_shift(walk);
  const float g_scale = power_of_2(shift - product_shift(walk)), dot_scale = power_of_2(shift);
  float2 dots[2];
  State<G, Sweep::kKeys>::column_numbers(dots, walk.numbers(kDot<G>, walk.place.tile + group));
  Block m;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    m[i / 4][i % 4] =
        g_scale * g[i / 4][i % 4] - dot_scale * (i % 2 ? dots[i / 4].y : dots[i / 4].x);
  if (group == 0) cut_at_diagonal</*kBefore=*/true>(m);
  Operands<Sweep::kKeys>::store(walk.place.tile, kFarSlopes + group, split_result(m, 1.f));
}
/// <f(k), scaled f(q)> of the groups of a tile inside the chunk, as operands.
template <typename G>
__device__ __forceinline__ void make_far_scores(const Walk<G, Sweep::kKeys>& walk,
                                                const Loader<G>& load, float to_operand) {
  const int own = walk.place.tile;
  const float scale = power_of_2(-shift_for(walk.largest_own_feature()) - walk.shift(kFeatureRows));
#pragma unroll 1
  for (int group = 0; group < far_groups(walk); ++group) {
    Block s;
    multiply_tiles(s, own_feature_tile<Sweep::kKeys>(own), walk.feature_tile(0, own + group), load);
    if (group == 0) cut_at_diagonal</*kBefore=*/true>(s);
#pragma unroll
    for (int i = 0; i < 8; ++i) s[i / 4][i % 4] *= scale;
    Operands<Sweep::kKeys>::store(own, kFarScores + group, split_result(s, to_operand));
  }
}
/// All operands of the chunk. Of a tile's four warps the first three have a group of products
/// v grad_out^T each, with what comes of it, and the last one the far field's scores.
template <typename G>
__device__ __forceinline__ void make_key_scores(const Walk<G, Sweep::kKeys>& walk,
                                                const Band<Sweep::kKeys>& band,
                                                const Loader<G>& load, float near_weight,
                                                float to_operand) {
  const int group = walk.place.slice;
  if (group == Wide::kSlices - 1) return make_far_scores(walk, load, to_operand);
  const bool has_near = group < band.groups, has_far = group < far_groups(walk);
  if (!has_near && !has_far) return;
  Block g;
  multiply_tiles(g, walk.own_tile(1), walk.tile(1, walk.place.tile + group), load);
  if (has_far) make_far_slopes(g, group, walk);
  if (has_near) make_near_operands(g, group, walk, band, load, near_weight, to_operand);
}

/// The state on its way to the warps that own values' channels: half of its rows at a time, those
/// of four warps, in blocks of 16 x 16 pairs of which every eight rows by eight numbers lie
/// together.
struct TurnedState {
  using M = Memory<Wide, Sweep::kKeys>;
  static constexpr int kRows = kWarps / 2;  // blocks of rows in one half

  static __device__ __forceinline__ int at(int row_block, int block) {
    return M::kState + (row_block % kRows * Wide::kBlocks + block) * kOperand;
  }
  /// Whether the warp's rows are in a half.
  static __device__ __forceinline__ bool has_half(int half, int warp) {
    return warp / kRows == half;
  }
  /// Block n of them.
  static __device__ __forceinline__ void store(int warp, int n, const Right& x) {
    float* to = shared_at(at(warp, n) + lane_id());
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[i * kWarpSize] = __uint_as_float(x.high[i]);
      to[(4 + i) * kWarpSize] = __uint_as_float(x.low[i]);
    }
  }
  /// sums += (features of own rows, one half of them) (the warp's channels of v).
  template <typename G>
  static __device__ __forceinline__ void multiply(Block (&sums)[Wide::kTiles], int half,
                                                  const Walk<G, Sweep::kKeys>& walk,
                                                  const Loader<G>& load) {
    // Turned, second and third piece change places.
    const int piece = lane_id() / 8, turned = piece % 2 * 2 + piece / 2;
    const int mine = turned * kWarpSize + lane_id() % 8 * 4;
#pragma unroll
    for (int b = 0; b < kRows; ++b) {
      const int block = half * kRows + b;
      const uint32_t from = static_cast<uint32_t>(
          __cvta_generic_to_shared(shared_at(at(block, walk.place.warp) + mine)));
      Right state[1];
      load_turned_pieces(state[0].high, from);
      load_turned_pieces(state[0].low, from + 4 * kWarpSize * int(sizeof(float)));
#pragma unroll
      for (int i = 0; i < Wide::kTiles; ++i)
        add_products(sums + i, load.left(own_feature_tile<Sweep::kKeys>(i), block), state);
    }
  }
};

/// d: gradients of own features from queries after the chunk, of the warp's channels. The first
/// half of the state, turned, on the way.
template <typename G>
__device__ __forceinline__ void multiply_state(Block (&d)[Wide::kTiles],
                                               const OwnState<G, Sweep::kKeys>& state,
                                               const Walk<G, Sweep::kKeys>& walk,
                                               const Loader<G>& load) {
  using M = Memory<G, Sweep::kKeys>;
  float2 later[2];
  column_pairs(later, shared_at(M::kKeySums + walk.place.warp * kBlockDim));
#pragma unroll
  for (int i = 0; i < 8 * Wide::kTiles; ++i)
    d[i / 8][i / 4 % 2][i % 4] = -(i % 2 ? later[i / 4 % 2].y : later[i / 4 % 2].x);
  Block sums[Wide::kTiles];
  clear(sums);
  const int warp = walk.place.warp;
  state.multiply(sums, walk.own_area(1), load, [&](int n, const Right& x) {
    if (TurnedState::has_half(0, warp)) TurnedState::store(warp, n, x);
  });
  add_totals(d, sums, power_of_2(-walk.shift(kOwnRows + 1) - state.shift));
}
struct KeyShifts {
  int scores, near_slopes, far_slopes;
};
/// Writes dk, from d.
template <typename G>
__device__ __forceinline__ void write_key_gradients(Block (&d)[Wide::kTiles],
                                                    const Walk<G, Sweep::kKeys>& walk,
                                                    const Band<Sweep::kKeys>& band,
                                                    const Loader<G>& load,
                                                    const KeyShifts& shifts) {
  const SweepArgs& args = walk.args;
  Results results(walk, args.dk, args.partial_dk);
  results.begin(walk);
  Block dk[Wide::kTiles];
  Block sums[Wide::kTiles];
  clear(sums), clear(dk);
#pragma unroll
  for (int tile = 0; tile < Wide::kTiles; ++tile) {
    const Right queries[1] = {load.turned_right(walk.feature_tile(0, tile), walk.place.warp)};
    each_far_group<Sweep::kKeys>(tile, [&](int i, int k) {
      add_products(sums + i, Operands<Sweep::kKeys>::load(i, kFarSlopes + k), queries);
    });
  }
  add_totals(d, sums, power_of_2(-shifts.far_slopes - walk.shift(kFeatureRows)));
  if (args.has_near) {
    clear(sums);
    add_near_columns(sums, kNearSlopes, walk, band, load);
    add_totals(dk, sums, power_of_2(-shifts.near_slopes - walk.shift(kBandRows)));
  }
  Block f[Wide::kTiles];
  load_channels(f, own_feature_tile<Sweep::kKeys>(0),
                power_of_2(-shift_for(walk.largest_own_feature())), walk.place.warp, load);
  with_paper_map<G>(args.feature_maps[0], [&](auto, auto slope) {
#pragma unroll
    for (int i = 0; i < 8 * Wide::kTiles; ++i)
      dk[i / 8][i / 4 % 2][i % 4] += d[i / 8][i / 4 % 2][i % 4] * slope(f[i / 8][i / 4 % 2][i % 4]);
  });
  results.write(walk, dk);
}

template <typename G>
__global__ void __launch_bounds__(kThreads, 1)
    wide_key_kernel(const __grid_constant__ SweepArgs args) {
  constexpr Sweep kSweep = Sweep::kKeys;
  Place<G> place(args);
  Loader<G> load;
  const Weights<G> weights(args, place.h);
  OwnState<G, kSweep> state;
  const Band<kSweep> band(args);
  Walk<G, kSweep> walk(args, place);
  ChunkShare<G, kSweep> share;
  Block d[Wide::kTiles], dv[Wide::kTiles];
  KeyShifts shifts;
  const auto multiply_features = [&](int half) {
    Block sums[Wide::kTiles];
    clear(sums);
    TurnedState::multiply(sums, half, walk, load);
    add_totals(dv, sums, power_of_2(-shift_for(walk.largest_own_feature()) - state.shift));
  };
  const auto body = [&] {
    load.forget();
    shifts = {shift_for(largest_score(walk, weights)),
              near_slope_shift(walk, args.near_scale * weights.of[1]), far_slope_shift(walk)};
    fetch_sums(walk, args.partial_dk), fetch_sums(walk, args.partial_dv);
    state.shift_part(walk);
    make_key_scores(walk, band, load, weights.of[1], power_of_2(shifts.scores));
    multiply_state(d, state, walk, load);
    clear(dv);
    __syncthreads();
    multiply_features(0);
    __syncthreads();
    if (TurnedState::has_half(1, place.warp)) {
#pragma unroll
      for (int n = 0; n < Wide::kBlocks; ++n) TurnedState::store(place.warp, n, state.operand(n));
    }
    state.add(walk, load);
  };
  const auto write_results = [&] {
    Results results(walk, args.dv, args.partial_dv);
    results.begin(walk);
    multiply_features(1);
    Block sums[Wide::kTiles];
    clear(sums);
    add_scored_values(sums, walk, band, load);
    add_totals(dv, sums, power_of_2(-shifts.scores - walk.shift(kBandRows + 1)));
    results.write(walk, dv);
    write_key_gradients(d, walk, band, load, shifts);
  };
  run(
      walk,
      [&](int chunk, uint64_t live) {
        walk.begin_own(0, args.k, chunk, live), walk.begin_own(1, args.v, chunk, live);
      },
      [&] { state.begin(walk); }, [&] { split_halo(walk); },
      [&] { measure_chunk(share, walk, weights); },
      [&] {
        split_chunk(share, walk);
        make_own_features(share.own[0], walk);
      },
      body, write_results);
}

}  // namespace fmmformer::cuda::chunks_fp32
