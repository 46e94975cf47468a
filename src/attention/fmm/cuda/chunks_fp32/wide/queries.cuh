// SPDX-License-Identifier: Apache-2.0
// The query sweep of heads of up to 128 channels. The formulas are those of docs/math.md.
#pragma once

#include "attention/fmm/cuda/chunks_fp32/wide/forward.cuh"

namespace fmmformer::cuda::chunks_fp32 {

/// The shift of the near field's gradients of scores. A row's dot is the mean of its products,
/// times the same factor.
template <typename G>
__device__ __forceinline__ int slope_shift(const Walk<G, Sweep::kQueries>& walk, float factor) {
  return shift_for(2.f * fabsf(factor) * walk.args.keep_factor * largest_product(walk));
}

/// Own rows' norms, which the next chunk's copies would overwrite, to where results need them.
template <typename G>
__device__ __forceinline__ void keep_norms(const Walk<G, Sweep::kQueries>& walk) {
  using M = Memory<G, Sweep::kQueries>;
  if (threadIdx.x < Wide::kChunk)
    *shared_at(M::kNorms + threadIdx.x) =
        *shared_at(M::kOwnNumbers + kNorm * Wide::kChunk + threadIdx.x);
}

/// One group of a tile's near field, from g = grad_out v^T with its shift: gradients of scores as
/// an operand. The warps of the tile meet inside, so `has_near` says whether there is such a group;
/// before that, meanwhile(). Writes row dots sum_j p_ij dp_ij. Returns <dO, near field> of rows g
/// and g + 8, in one lane each.
template <typename G, typename Meanwhile>
__device__ __forceinline__ float make_near_slopes(const Block& g, int group, bool has_near,
                                                  const Walk<G, Sweep::kQueries>& walk,
                                                  const Band<Sweep::kQueries>& band,
                                                  const Loader<G>& load, float weight,
                                                  const Meanwhile& meanwhile) {
  const SweepArgs& args = walk.args;
  const int tile = walk.place.tile;
  const float factor = args.near_scale * weight, product_scale = power_of_2(-product_shift(walk));
  Block p;
  uint32_t kept = ~0u;
  if (has_near) {
    float log_sum[2], dot[2] = {0.f, 0.f};
    walk.own_numbers(log_sum, kLogSumExp);
    // Infinity beyond the end too, where the numbers are another row's.
#pragma unroll
    for (int r = 0; r < 2; ++r)
      log_sum[r] = walk.live_bits(tile) >> row_of(2 * r) & 1 ? log_sum[r] * kLog2E : INFINITY;
    multiply_tiles(p, walk.own_tile(0), walk.tile(0, tile - group), load);
    kept = kept_bits(walk, band, group);
    const float scale = score_scale(walk, band);
    const uint32_t inside = band.inside(group, walk.live_bits(tile - group));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& element = p[i / 4][i % 4];
      element = inside >> i & 1 ? element : -INFINITY;
      element = Bf16::exp2(element * scale - log_sum[i % 4 / 2]);
      dot[i % 4 / 2] += element * kept_factor(kept, 0, i, args) * g[i / 4][i % 4];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      dot[r] = quad_sum(dot[r]) * product_scale;
      if (lane_id() % 4 == 0) tile_numbers<Sweep::kQueries>(tile, group)[row_of(2 * r)] = dot[r];
    }
  }
  meanwhile();
  walk.place.meet_slices();
  if (!has_near) return 0.f;
  float dot[2] = {0.f, 0.f};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int k = 0; k < kBandGroups; ++k)
      dot[r] += k < band.groups ? tile_numbers<Sweep::kQueries>(tile, k)[row_of(2 * r)] : 0.f;
  }
  const float by_weight = dot[0] + dot[1];
#pragma unroll
  for (int r = 0; r < 2; ++r) dot[r] *= factor;
  float* dots = args.row_dots + walk.place.row_index(args, args.all_maps + 1, args.all_maps);
  each_row_once(walk, [&](int r, int token) { dots[token] = dot[r]; });
#pragma unroll
  for (int i = 0; i < 8; ++i)
    p[i / 4][i % 4] *=
        factor * product_scale * kept_factor(kept, 0, i, args) * g[i / 4][i % 4] - dot[i % 4 / 2];
  Operands<Sweep::kQueries>::store(tile, kNearScores + group,
                                   split_result(p, power_of_2(slope_shift(walk, factor))));
  return group == 0 && lane_id() % 4 == 0 ? by_weight : 0.f;
}

/// Products grad_out v^T inside the chunk and gradients of the near field's scores, as operands. Of
/// a tile's four warps the first three have a group each. meanwhile(): see make_near_slopes.
template <typename G, typename Meanwhile>
__device__ __forceinline__ float make_query_scores(const Walk<G, Sweep::kQueries>& walk,
                                                   const Band<Sweep::kQueries>& band,
                                                   const Loader<G>& load, float weight,
                                                   const Meanwhile& meanwhile) {
  const int tile = walk.place.tile, group = walk.place.slice;
  const bool has_near = group < band.groups, has_far = group < far_groups(walk);
  Block g;
  if (has_near || has_far) multiply_tiles(g, walk.own_tile(1), walk.tile(1, tile - group), load);
  if (has_far) {
    Block m;
#pragma unroll
    for (int i = 0; i < 8; ++i) m[i / 4][i % 4] = g[i / 4][i % 4];
    if (group == 0) cut_at_diagonal</*kBefore=*/false>(m);
    Operands<Sweep::kQueries>::store(tile, kFarScores + group,
                                     split_result(m, product_to_operand<G>()));
  }
  return make_near_slopes(g, group, has_near, walk, band, load, weight, meanwhile);
}

/// Features of the warp's channels of own rows.
template <typename G>
__device__ __forceinline__ void load_features(Block (&f)[Wide::kTiles],
                                              const Walk<G, Sweep::kQueries>& walk,
                                              const Loader<G>& load) {
  load_channels(f, walk.own_area(0), power_of_2(-walk.shift(kOwnRows)), walk.place.warp, load);
  with_paper_map<G>(walk.args.feature_maps[0], [&](auto feature, auto) {
#pragma unroll
    for (int i = 0; i < 8 * Wide::kTiles; ++i) {
      float& x = f[i / 8][i / 4 % 2][i % 4];
      x = feature(x, decay_of(x));
    }
  });
}
/// Sums over the keys j that a query sees, for the warp's feature channels, as far as they do not
/// need scores: u = sum G_ij f(k_j) before the chunk, and z = sum f(k_j).
template <typename G>
__device__ __forceinline__ void sum_over_keys(Block (&u)[Wide::kTiles], Block (&z)[Wide::kTiles],
                                              const OwnState<G, Sweep::kQueries>& state,
                                              const Walk<G, Sweep::kQueries>& walk,
                                              const Loader<G>& load) {
  using M = Memory<G, Sweep::kQueries>;
  const int warp = walk.place.warp;
  Block sums[Wide::kTiles];
  clear(sums), clear(u);
  state.multiply(sums, walk.own_area(1), load);
  add_totals(u, sums, power_of_2(-walk.shift(kOwnRows + 1) - state.shift));
  float2 before[2];
  column_pairs(before, shared_at(M::kKeySums + warp * kBlockDim));
#pragma unroll
  for (int i = 0; i < 8 * Wide::kTiles; ++i)
    z[i / 8][i / 4 % 2][i % 4] = i % 2 ? before[i / 4 % 2].y : before[i / 4 % 2].x;
  clear(sums);
  uint32_t seen[4], all_seen[4];
  seen_columns(seen, /*diagonal=*/true), seen_columns(all_seen, /*diagonal=*/false);
#pragma unroll
  for (int tile = 0; tile < Wide::kTiles; ++tile) {
    const Right f[1] = {load.turned_right(walk.feature_tile(0, tile), warp)};
#pragma unroll
    for (int i = tile; i < Wide::kTiles; ++i)
      add_exact_products(sums + i, i == tile ? seen : all_seen, f);
  }
  add_totals(z, sums, power_of_2(-walk.shift(kFeatureRows)));
}
/// What the chunk's own keys add to u.
template <typename G>
__device__ __forceinline__ void add_keys_of_chunk(Block (&u)[Wide::kTiles],
                                                  const Walk<G, Sweep::kQueries>& walk,
                                                  const Loader<G>& load) {
  Block sums[Wide::kTiles];
  clear(sums);
#pragma unroll
  for (int tile = 0; tile < Wide::kTiles; ++tile) {
    const Right f[1] = {load.turned_right(walk.feature_tile(0, tile), walk.place.warp)};
    each_far_group<Sweep::kQueries>(tile, [&](int i, int k) {
      add_products(sums + i, Operands<Sweep::kQueries>::load(i, kFarScores + k), f);
    });
  }
  add_totals(u, sums,
             power_of_2(-walk.shift(kFeatureRows) - product_shift(walk) + kProductBits<G> - kTop));
}

/// A row's numbers from its dot <u, f>: what its far gradient is multiplied with, and its dot by
/// the norm, which is also written. Every warp has four rows. Returns <dO, far field> of one, in
/// one lane of eight. `dots`: of the warp's channels, of rows g and g + 8 of either tile. Barriers
/// inside.
template <typename G>
__device__ __forceinline__ float make_row_factors(float (&dots)[2 * Wide::kTiles],
                                                  const Walk<G, Sweep::kQueries>& walk,
                                                  float weight) {
  using M = Memory<G, Sweep::kQueries>;
  constexpr int kChunk = Wide::kChunk;
  const SweepArgs& args = walk.args;
  const int lane = lane_id(), warp = walk.place.warp;
#pragma unroll
  for (int i = 0; i < 2 * Wide::kTiles; ++i) {
    const float sum = quad_sum(dots[i]);
    if (lane % 4 == 0)
      *shared_at(M::kExchange + warp * kChunk + i / 2 * kBlockDim + row_of(i % 2 * 2)) = sum;
  }
  __syncthreads();
  const int row = warp * 4 + lane / 8;
  float dot = *shared_at(M::kExchange + lane % 8 * kChunk + row);
#pragma unroll
  for (int other = 1; other < 8; other *= 2) dot += __shfl_xor_sync(~0u, dot, other);
  float by_weight = 0.f;
  if (lane % 8 == 0) {
    const bool row_sums = has_row_sums(args), live = walk.live >> row & 1;
    const float norm = row_sums ? *shared_at(M::kNorms + row) : args.fixed_norm;
    const float inverse = live ? __fdividef(1.f, norm) : 0.f, scale = args.far_scale * inverse;
    by_weight = scale * dot;
    dot = row_sums ? dot * inverse : 0.f;
    *shared_at(M::kRowFactors + row) = scale * weight;
    *shared_at(M::kRowFactors + kChunk + row) = dot;
    const int token = walk.token(0) + row;
    if (token < args.length)
      args.row_dots[walk.place.row_index(args, args.all_maps + 1, args.first_map) + token] = dot;
  }
  __syncthreads();
  return by_weight;
}

/// Writes dq, from u, z and features of the warp's channels. Returns <dO, far field>, see
/// make_row_factors.
template <typename G>
__device__ __forceinline__ float write_query_gradients(
    Block (&u)[Wide::kTiles], const Block (&z)[Wide::kTiles], const Block (&f)[Wide::kTiles],
    const Walk<G, Sweep::kQueries>& walk, const Band<Sweep::kQueries>& band, const Loader<G>& load,
    float weight, int near_shift) {
  using M = Memory<G, Sweep::kQueries>;
  const SweepArgs& args = walk.args;
  Results results(walk, args.dq, args.partial_dq);
  results.begin(walk);
  add_keys_of_chunk(u, walk, load);
  float dots[2 * Wide::kTiles] = {};
#pragma unroll
  for (int i = 0; i < 8 * Wide::kTiles; ++i)
    dots[i / 8 * 2 + i % 4 / 2] += f[i / 8][i / 4 % 2][i % 4] * u[i / 8][i / 4 % 2][i % 4];
  const float by_weight = make_row_factors(dots, walk, weight);
  Block dq[Wide::kTiles];
  clear(dq);
  if (args.has_near) {
    Block sums[Wide::kTiles];
    clear(sums);
    add_near_columns(sums, kNearScores, walk, band, load);
    add_totals(dq, sums, power_of_2(-near_shift - walk.shift(kBandRows)));
  }
  with_paper_map<G>(args.feature_maps[0], [&](auto, auto slope) {
#pragma unroll
    for (int i = 0; i < 8 * Wide::kTiles; ++i) {
      const int tile = i / 8, n = i / 4 % 2;
      const float* numbers = shared_at(M::kRowFactors + tile * kBlockDim + row_of(i % 4));
      dq[tile][n][i % 4] += numbers[0] *
                            (u[tile][n][i % 4] - numbers[Wide::kChunk] * z[tile][n][i % 4]) *
                            slope(f[tile][n][i % 4]);
    }
  });
  results.write(walk, dq);
  return by_weight;
}

/// Gradients of blend weights from sums of lanes, as store_weight_sums does it. A barrier inside.
template <typename G>
__device__ __forceinline__ void store_wide_weight_sums(float far, float near, const SweepArgs& args,
                                                       const Place<G>& place) {
  float* all = shared_at(Memory<G, Sweep::kQueries>::kExchange);  // [warps][far, near]
#pragma unroll
  for (int other = 1; other < kWarpSize; other *= 2) {
    far += __shfl_xor_sync(~0u, far, other);
    near += __shfl_xor_sync(~0u, near, other);
  }
  if (lane_id() == 0) all[place.warp * 2] = far, all[place.warp * 2 + 1] = near;
  __syncthreads();
  const int field = threadIdx.x;
  if (field >= Wide::kFields || (field == 1 && !args.has_near)) return;
  float sum = 0.f;
  for (int warp = 0; warp < kWarps; ++warp) sum += all[warp * 2 + field];
  const int64_t row =
      blockIdx.x * int64_t(args.all_maps + 1) + (field == 1 ? args.all_maps : args.first_map);
  args.weight_sums[row * args.all_channels] = sum;
}

template <typename G>
__global__ void __launch_bounds__(kThreads, 1)
    wide_query_kernel(const __grid_constant__ SweepArgs args) {
  constexpr Sweep kSweep = Sweep::kQueries;
  Place<G> place(args);
  Loader<G> load;
  const Weights<G> weights(args, place.h);
  OwnState<G, kSweep> state;
  const Band<kSweep> band(args);
  Walk<G, kSweep> walk(args, place);
  ChunkShare<G, kSweep> share;
  float by_far = 0.f, by_near = 0.f;
  Block u[Wide::kTiles], z[Wide::kTiles], f[Wide::kTiles];
  int near_shift = 0;
  run(
      walk,
      [&](int chunk, uint64_t live) {
        walk.begin_own(0, args.q, chunk, live), walk.begin_own(1, args.grad_out, chunk, live);
        walk.begin_own_numbers(chunk);
      },
      [&] { state.begin(walk); }, [&] { split_halo(walk); },
      [&] { measure_chunk(share, walk, weights); },
      [&] {
        split_chunk(share, walk);
        keep_norms(walk);
      },
      [&] {
        load.forget();
        fetch_sums(walk, args.partial_dq);
        state.shift_part(walk);
        near_shift = slope_shift(walk, args.near_scale * weights.of[1]);
        by_near += make_query_scores(walk, band, load, weights.of[1], [&] {
          sum_over_keys(u, z, state, walk, load);
          state.add(walk, load);
          load_features(f, walk, load);
        });
      },
      [&] {
        by_far += write_query_gradients(u, z, f, walk, band, load, weights.of[0], near_shift);
      });
  if (args.weight_sums) store_wide_weight_sums(by_far, by_near, args, place);
}

}  // namespace fmmformer::cuda::chunks_fp32
