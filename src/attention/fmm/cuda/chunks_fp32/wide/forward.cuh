// SPDX-License-Identifier: Apache-2.0
// The forward sweep of heads of up to 128 channels. The formulas are those of docs/math.md.
#pragma once

#include "attention/fmm/cuda/chunks_fp32/far.cuh"
#include "attention/fmm/cuda/chunks_fp32/wide/rows.cuh"

namespace fmmformer::cuda::chunks_fp32 {

/// What the four warps of a tile tell one another: numbers of its sixteen rows.
template <Sweep kSweep>
__device__ __forceinline__ float* tile_numbers(int tile, int which) {
  return shared_at(Memory<Wide, kSweep>::kExchange + (tile * 8 + which) * kBlockDim);
}
constexpr int kPeaks = 0, kTotals = 3,
              kInside = 6;  // [3] and [3] of the near field, [2] of the far

/// One group of a tile's near field: exp2(score - base) for each row's own base, which is told to
/// the others, and so is the sum.
template <typename G>
__device__ __forceinline__ void begin_softmax(Block& p, float (&base)[2], int group,
                                              const Walk<G, Sweep::kForward>& walk,
                                              const Band<Sweep::kForward>& band,
                                              const Loader<G>& load) {
  const int tile = walk.place.tile;
  multiply_tiles(p, walk.own_tile(0), walk.tile(0, tile - group), load);
  const float scale = score_scale(walk, band);
  const uint32_t inside = band.inside(group, walk.live_bits(tile - group));
  float total[2] = {0.f, 0.f};
  base[0] = base[1] = -INFINITY;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float& score = p[i / 4][i % 4];
    score = inside >> i & 1 ? score * scale : -INFINITY;
    base[i % 4 / 2] = fmaxf(base[i % 4 / 2], score);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) base[r] = quad_max(base[r]);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float& element = p[i / 4][i % 4];
    element = element == -INFINITY ? 0.f : Bf16::exp2(element - base[i % 4 / 2]);
    total[i % 4 / 2] += element;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    total[r] = quad_sum(total[r]);
    if (lane_id() % 4 != 0) continue;
    tile_numbers<Sweep::kForward>(tile, kPeaks + group)[row_of(2 * r)] = base[r];
    tile_numbers<Sweep::kForward>(tile, kTotals + group)[row_of(2 * r)] = total[r];
  }
}
/// After the others' numbers have come: weight * softmax as an operand; writes log_sum_exp.
template <typename G>
__device__ __forceinline__ void finish_softmax(Block& p, const float (&base)[2], int group,
                                               const Walk<G, Sweep::kForward>& walk,
                                               const Band<Sweep::kForward>& band, float weight,
                                               float to_operand) {
  const SweepArgs& args = walk.args;
  const int tile = walk.place.tile;
  float highest[2] = {-INFINITY, -INFINITY}, total[2] = {0.f, 0.f}, factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float* bases = tile_numbers<Sweep::kForward>(tile, kPeaks) + row_of(2 * r);
    const float* totals = tile_numbers<Sweep::kForward>(tile, kTotals) + row_of(2 * r);
#pragma unroll
    for (int k = 0; k < kBandGroups; ++k)
      highest[r] = fmaxf(highest[r], k < band.groups ? bases[k * kBlockDim] : -INFINITY);
    if (highest[r] == -INFINITY) highest[r] = 0.f;
#pragma unroll
    for (int k = 0; k < kBandGroups; ++k) {
      if (k < band.groups)
        total[r] += totals[k * kBlockDim] * Bf16::exp2(bases[k * kBlockDim] - highest[r]);
    }
    factor[r] = total[r] > 0.f ? __fdividef(weight, total[r]) : 0.f;
    factor[r] *= Bf16::exp2(base[r] - highest[r]);
  }
  const uint32_t kept = kept_bits(walk, band, group);
#pragma unroll
  for (int i = 0; i < 8; ++i) p[i / 4][i % 4] *= factor[i % 4 / 2] * kept_factor(kept, 0, i, args);
  Operands<Sweep::kForward>::store(tile, kNearScores + group, split_result(p, to_operand));
  const uint32_t live = walk.live_bits(tile);
  float* log_sum_exp = args.log_sum_exp + walk.place.row_index(args, 1, 0);
  each_row_once(walk, [&](int r, int token) {
    // Infinity for rows that saw nothing or are dead: every later exp(score - log_sum_exp) is 0.
    const bool seen = (live >> row_of(2 * r) & 1) && total[r] > 0.f;
    log_sum_exp[token] = seen ? (highest[r] + __log2f(total[r])) * (1.f / kLog2E) : INFINITY;
  });
}

/// Powers of two that undo the shifts of own features in rows g and g + 8, times 2^shift.
template <typename G>
__device__ __forceinline__ void own_shift_scales(float (&scale)[2], int shift,
                                                 const Walk<G, Sweep::kForward>& walk) {
  float own[2];
  walk.own_numbers(own, 1);
#pragma unroll
  for (int r = 0; r < 2; ++r) scale[r] = power_of_2(shift - __float_as_int(own[r]));
}
/// One group of a tile's far field: scores inside the chunk, whose sums are told to the others.
template <typename G>
__device__ __forceinline__ void begin_far(Block& s, int group, const Walk<G, Sweep::kForward>& walk,
                                          const Loader<G>& load) {
  const int tile = walk.place.tile;
  multiply_tiles(s, own_feature_tile<Sweep::kForward>(tile), walk.feature_tile(0, tile - group),
                 load);
  if (group == 0) cut_at_diagonal</*kBefore=*/false>(s);
  float scale[2], inside[2] = {0.f, 0.f};
  own_shift_scales(scale, -walk.shift(kFeatureRows), walk);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    s[i / 4][i % 4] *= scale[i % 4 / 2];
    inside[i % 4 / 2] += s[i / 4][i % 4];
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    inside[r] = quad_sum(inside[r]);
    if (lane_id() % 4 == 0)
      tile_numbers<Sweep::kForward>(tile, kInside + group)[row_of(2 * r)] = inside[r];
  }
}
/// After the others' numbers have come: weight * far_scale / norm * scores as an operand; the first
/// group's warp writes normalisers, and what rows of the state's product are multiplied with.
template <typename G>
__device__ __forceinline__ void finish_far(Block& s, int group,
                                           const Walk<G, Sweep::kForward>& walk, float weight,
                                           float to_operand, int state_shift) {
  using M = Memory<G, Sweep::kForward>;
  const SweepArgs& args = walk.args;
  const int tile = walk.place.tile;
  float norm[2] = {args.fixed_norm, args.fixed_norm}, factor[2];
  if (has_row_sums(args)) {
    walk.own_numbers(norm, 0);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float* inside = tile_numbers<Sweep::kForward>(tile, kInside) + row_of(2 * r);
      norm[r] += inside[0] + (tile > 0 ? inside[kBlockDim] : 0.f) + args.eps;
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) factor[r] = __fdividef(weight * args.far_scale, norm[r]);
#pragma unroll
  for (int i = 0; i < 8; ++i) s[i / 4][i % 4] *= factor[i % 4 / 2];
  Operands<Sweep::kForward>::store(tile, kFarScores + group, split_result(s, to_operand));
  if (group != 0 || lane_id() % 4 != 0) return;
  float scale[2];
  own_shift_scales(scale, -state_shift, walk);
  float* normalisers = args.normalisers + walk.place.row_index(args, args.all_maps, args.first_map);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    *shared_at(M::kRowFactors + tile * kBlockDim + row_of(2 * r)) = factor[r] * scale[r];
    const int token = walk.token(tile) + row_of(2 * r);
    if (has_row_sums(args) && token < args.length) normalisers[token] = norm[r];
  }
}

/// All scores of the chunk, as operands. Of a tile's four warps the first three have a group of
/// the near field each, the last two one of the far field. Before they meet, meanwhile().
template <typename G, typename Meanwhile>
__device__ __forceinline__ void make_scores(const Walk<G, Sweep::kForward>& walk,
                                            const Band<Sweep::kForward>& band,
                                            const Loader<G>& load, const Weights<G>& weights,
                                            float to_operand, int state_shift,
                                            const Meanwhile& meanwhile) {
  const int near = walk.place.slice, far = Wide::kSlices - 1 - near;
  const bool has_near = near < band.groups, has_far = far < far_groups(walk);
  Block p, s;
  float base[2];
  if (has_near) begin_softmax(p, base, near, walk, band, load);
  if (has_far) begin_far(s, far, walk, load);
  meanwhile();
  walk.place.meet_slices();
  if (has_near) finish_softmax(p, base, near, walk, band, weights.of[1], to_operand);
  if (has_far) finish_far(s, far, walk, weights.of[0], to_operand, state_shift);
}

/// Calls body(own tile i, group) for the groups of the near field's columns, or the far field's,
/// that tile `tile` of the walk is. All is known at compile time.
template <Sweep kSweep, typename Body>
__device__ __forceinline__ void each_near_group(int tile, int groups, const Body& body) {
#pragma unroll
  for (int i = 0; i < Wide::kTiles; ++i) {
    const int group = kSweep == Sweep::kKeys ? tile - i : i - tile;
    if (group >= 0 && group < kBandGroups && group < groups) body(i, group);
  }
}
template <Sweep kSweep, typename Body>
__device__ __forceinline__ void each_far_group(int tile, const Body& body) {
  if (tile < 0 || tile >= Wide::kTiles) return;
#pragma unroll
  for (int i = 0; i < Wide::kTiles; ++i) {
    const int group = kSweep == Sweep::kKeys ? tile - i : i - tile;
    if (group >= 0) body(i, group);
  }
}
/// Calls body(tile) for the tiles of the walk that a chunk's rows see.
template <Sweep kSweep, typename Body>
__device__ __forceinline__ void each_seen_tile(bool has_near, const Body& body) {
#pragma unroll
  for (int j = 0; j < Wide::kTiles + kHalo; ++j) {
    const int tile = kSweep == Sweep::kKeys ? j : j - kHalo;
    if (has_near || (tile >= 0 && tile < Wide::kTiles)) body(tile);
  }
}
/// sums += (all scores) (the warp's channels of the walk's tensor 1).
template <typename G, Sweep kSweep>
__device__ __forceinline__ void add_scored_values(Block (&sums)[Wide::kTiles],
                                                  const Walk<G, kSweep>& walk,
                                                  const Band<kSweep>& band, const Loader<G>& load) {
  each_seen_tile<kSweep>(band.groups > 0, [&](int tile) {
    const Right values[1] = {load.turned_right(walk.tile(1, tile), walk.place.warp)};
    const auto add = [&](int i, int which) {
      add_products(sums + i, Operands<kSweep>::load(i, which), values);
    };
    each_near_group<kSweep>(tile, band.groups, [&](int i, int k) { add(i, kNearScores + k); });
    each_far_group<kSweep>(tile, [&](int i, int k) { add(i, kFarScores + k); });
  });
}
/// sums += (the near field's operands from `which` on) (the warp's channels of the walk's tensor
/// 0).
template <typename G, Sweep kSweep>
__device__ __forceinline__ void add_near_columns(Block (&sums)[Wide::kTiles], int which,
                                                 const Walk<G, kSweep>& walk,
                                                 const Band<kSweep>& band, const Loader<G>& load) {
  each_seen_tile<kSweep>(true, [&](int tile) {
    const Right columns[1] = {load.turned_right(walk.tile(0, tile), walk.place.warp)};
    each_near_group<kSweep>(tile, band.groups, [&](int i, int k) {
      add_products(sums + i, Operands<kSweep>::load(i, which + k), columns);
    });
  });
}

/// out: what the state before the chunk yields, but for the rows' factors and all shifts.
template <typename G>
__device__ __forceinline__ void multiply_state(Block (&out)[Wide::kTiles],
                                               const OwnState<G, Sweep::kForward>& state,
                                               const Loader<G>& load) {
  clear(out);
  state.multiply(out, own_feature_tile<Sweep::kForward>(0), load);
}
/// Joins that with what scores yield.
template <typename G>
__device__ __forceinline__ void write_out(Block (&out)[Wide::kTiles],
                                          const Walk<G, Sweep::kForward>& walk,
                                          const Band<Sweep::kForward>& band, const Loader<G>& load,
                                          int score_shift) {
  using M = Memory<G, Sweep::kForward>;
  Results results(walk, walk.args.out, walk.args.partial_out);
  results.begin(walk);
#pragma unroll
  for (int i = 0; i < 8 * Wide::kTiles; ++i)
    out[i / 8][i / 4 % 2][i % 4] *= *shared_at(M::kRowFactors + i / 8 * kBlockDim + row_of(i % 4));
  Block sums[Wide::kTiles];
  clear(sums);
  add_scored_values(sums, walk, band, load);
  add_totals(out, sums, power_of_2(-score_shift - walk.shift(kBandRows + 1)));
  results.write(walk, out);
}

template <typename G>
__global__ void __launch_bounds__(kThreads, 1)
    wide_forward_kernel(const __grid_constant__ SweepArgs args) {
  constexpr Sweep kSweep = Sweep::kForward;
  Place<G> place(args);
  Loader<G> load;
  const Weights<G> weights(args, place.h);
  OwnState<G, kSweep> state;
  const Band<kSweep> band(args);
  Walk<G, kSweep> walk(args, place);
  ChunkShare<G, kSweep> share;
  Block out[Wide::kTiles];
  int score_shift = 0;
  run(
      walk, [&](int chunk, uint64_t live) { walk.begin_own(0, args.q, chunk, live); },
      [&] { state.begin(walk); }, [&] { split_halo(walk); },
      [&] { measure_chunk(share, walk, weights); },
      [&] {
        split_chunk(share, walk);
        make_own_features(share.own[0], walk);
      },
      [&] {
        load.forget();
        score_shift = shift_for(largest_score(walk, weights));
        fetch_sums(walk, args.partial_out);
        state.shift_part(walk);
        make_scores(walk, band, load, weights, power_of_2(score_shift), state.shift, [&] {
          multiply_state(out, state, load);
          state.add(walk, load);
        });
      },
      [&] { write_out(out, walk, band, load, score_shift); });
  if (args.made.sums && place.segment == args.segments - 1) state.store(walk, place.pair);
}

}  // namespace fmmformer::cuda::chunks_fp32
