// SPDX-License-Identifier: Apache-2.0
// The keys' sweep of backward, from the last chunk to the first: dk, dv and the sums for weights'
// gradients.
#pragma once

#include "attention/fmm/cuda/narrow_fp32/forward.cuh"

namespace fmmformer::cuda::narrow_fp32 {

/// Sums for the gradients of weights that differ by channel: over tokens of v_j * (gradient of v
/// before its weight). A lane has those of one channel.
template <typename G>
struct WeightSums {
  float sums[G::kFields] = {};

  __device__ __forceinline__ void add(int field, const Rows& rows, const Rows& v) {
    float x[kBlocks * 4];
#pragma unroll
    for (int i = 0; i < kBlocks * 4; ++i) {
      const float *a = rows[i / 4][i / 2 % 2] + i % 2, *b = v[i / 4][i / 2 % 2] + i % 2;
      x[i] = a[0] * b[0] + a[2] * b[2];
    }
    const float sum = sum_columns(x);
#pragma unroll
    for (int i = 0; i < G::kFields; ++i) sums[i] += i == field ? sum : 0.f;
  }
  /// The block's row of args.weight_sums, by way of memory that nobody reads. A barrier inside.
  __device__ __forceinline__ void store(const Sequence<G>& at) const {
    float* parts = shared_at<float>(G::kFeatures);
#pragma unroll
    for (int field = 0; field < G::kFields; ++field)
      parts[(at.warp * G::kFields + field) * kDim + channel_of_lane()] = sums[field];
    at.meet_walkers();
    for (int i = threadIdx.x; i < G::kFields * kDim; i += kTeamThreads) {
      const int field = i / kDim;
      if (field == G::kMaps && !at.args.has_near) continue;
      float sum = 0.f;
      for (int warp = 0; warp < kWarps; ++warp) sum += parts[warp * G::kFields * kDim + i];
      const int64_t row = at.pair * int64_t(at.args.all_maps + 1) + field;
      at.args.weight_sums[row * at.args.all_channels + i % kDim] = sum;
    }
  }
};

/// Gradients of scores as operands: products of the warp's values, times a map's weights, with the
/// chunk's grad_out, `shift` that of both; and dots with a minus. Returns the shift that they have
/// together with that of query features.
template <typename G>
__device__ __forceinline__ int split_gradients(const Sequence<G>& at, Left (&inner)[kTiles],
                                               Block (&products)[kTiles], int map,
                                               int value_shift) {
  int together = 1 << 20;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int dot_shift = shared_at<int>(G::kDotShifts)[map * kTiles + t];
    together = min(together, min(value_shift + at.band_size(1, t).shift - kDown, dot_shift) - 1 +
                                 query_shift<G>(map, t));
  }
  const float* dots = shared_at<float>(G::kDots) + map * kRows + lane_id() % 4 * 2;
  split_seen</*kBefore=*/true>(inner, products, at.warp, [&](int t, Block& c) {
    const int shift = together - query_shift<G>(map, t);
    const float of_products = power_of_2(shift - value_shift - at.band_size(1, t).shift),
                of_dots = power_of_2(shift);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 dot = *reinterpret_cast<const float2*>(dots + t * kBlockDim + n * 8);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        c[n][i] = c[n][i] * of_products + (i % 2 ? dot.y : dot.x) * of_dots;
    }
    if (t == at.warp) cut_at_diagonal</*kBefore=*/true>(c);
    return split_result(c, 1.f);
  });
  return together;
}

/// dk and dv += the far fields' gradients. With T the state of the queries after the chunk, f their
/// rows in it, and x the rows of keys: dv = w (x T + (x f^T) dO) and
/// dx = v w T^T - y + (v w dO^T - dots) f.
template <typename G>
__device__ __forceinline__ void far_key(const Sequence<G>& at, Rows& dk, Rows& dv,
                                        WeightSums<G>& weight_sums) {
  const uint64_t grads = rows_operand(at.band_chunk(1, 0));
  const int key_shift = at.own_size(0).features;
  each_map_in_turn<G>([&](int l) {
    const uint64_t queries = rows_operand(at.features(l)), state = rows_operand(at.state(l));
    const int state_shift = State<G>::shift(l);
    Rows x;
    float inverse_sums[2];
    load_features<G>(x, l, at.own_tile(0), at.lane, inverse_sums);
    Left v[kBlocks], inner[kTiles];
    {
      Left rows[kBlocks];
      split_rows(rows, x, power_of_2(key_shift));
      Rows value_sum, values;
      {
        Block scores[kTiles];
        begin_warpgroup_products();
        begin_products</*kTurned=*/false>(scores, rows, queries, kToBlock);
        begin_products</*kTurned=*/false>(value_sum, rows, state, kToBlock);
        await_warpgroup_products();
        arrived(scores), arrived(value_sum);
        split_seen</*kBefore=*/true>(inner, scores, at.warp, [&](int t, const Block& c) {
          return split_result(c, power_of_2(state_shift - together(at, l, t)));
        });
      }
      begin_warpgroup_products();
      begin_products</*kTurned=*/true, /*kAdd=*/true>(value_sum, inner, grads, kToTile);
      load_numbers(values, at.own_tile(1), at.lane);
      weigh<G>(v, values, l, power_of_2(at.own_size(1).shift));
      await_warpgroup_products();
      arrived(value_sum);
      const float unit = power_of_2(-key_shift - state_shift);
      each_element([&](int s, int i) { element(value_sum, s, i) *= unit; });
      weight_sums.add(l, value_sum, values);
      const float ones[2] = {1.f, 1.f};
      add_field(at, dv, value_sum, ones, l);
    }
    const int value_shift = at.own_size(1).shift + at.weight_shift(l);
    int shift;
    Rows dx, after;
    {
      Block products[kTiles];
      begin_warpgroup_products();
      begin_products</*kTurned=*/false>(products, v, grads, kToBlock);
      begin_products</*kTurned=*/true>(after, v, state, kToTile);
      await_warpgroup_products();
      arrived(products), arrived(after);
      shift = split_gradients(at, inner, products, l, value_shift);
    }
    begin_warpgroup_products();
    begin_products</*kTurned=*/true>(dx, inner, queries, kToTile);
    await_warpgroup_products();
    arrived(dx);
    join(dx, power_of_2(-shift), power_of_2(-value_shift - state_shift), after);
    const float* sums = at.sums(l) + lane_id() % 4 * 2;
#pragma unroll
    for (int n = 0; n < kBlocks * 2; ++n) {
      const float2 y = *reinterpret_cast<const float2*>(sums + n * 8);
      float* c = dx[n / 2][n % 2];
      c[0] += y.x, c[1] += y.y, c[2] += y.x, c[3] += y.y;
    }
    with_map<G>(l, [&](auto map) { add_input_gradient<G>(map, dk, dx, x, inverse_sums); });
  });
}

template <typename G>
__device__ __forceinline__ void walk_keys(Sequence<G>& at) {
  const SweepArgs& args = at.args;
  begin_walk(at);
  WeightSums<G> weight_sums;
  const Band<G> band(at);
#pragma unroll 1
  for (;;) {
    at.forget();
    const bool more = at.chunk > 0;
    meet_block();
    Rows dk, dv;
    clear(dv);
    if (args.has_near) {
      const float ones[2] = {1.f, 1.f};
      Rows value_sum, v;
      near_key(band, dk, value_sum);
      load_numbers(v, at.own_tile(1), at.lane);
      weight_sums.add(G::kMaps, value_sum, v);
      add_field(at, dv, value_sum, ones, G::kMaps);
    } else {
      clear(dk);
    }
    if (more) at.leave_halo();
    at.await_features();
    far_key(at, dk, dv, weight_sums);
    at.write(args.dk, dk), at.write(args.dv, dv);
    if (!more) break;
    --at.chunk;
  }
  at.meet_walkers();
  if (args.weight_sums) weight_sums.store(at);
}

template <typename G>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    key_kernel(const __grid_constant__ SweepArgs args) {
  Sequence<G> at(args);
  at.chunk = at.chunks - 1;
  at.find_live();
  __syncthreads();
  if (threadIdx.x >= kTeamThreads) {
    leave_registers<G::kFeederRegisters>();
    Feeder<G>(at, args.q, args.grad_out, args.k, args.v).feed(-1);
  } else {
    take_registers<G::kWalkerRegisters>();
    walk_keys(at);
  }
}

}  // namespace fmmformer::cuda::narrow_fp32
