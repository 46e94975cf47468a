// SPDX-License-Identifier: Apache-2.0
// The queries' sweep of backward: dq and row dots, and dropout's bits for the keys' sweep.
#pragma once

#include "attention/fmm/cuda/narrow_fp32/forward.cuh"

namespace fmmformer::cuda::narrow_fp32 {

/// z = the sum of the feature rows that each of the warp's queries sees: of those before the chunk,
/// of the chunk's tiles before its own, and of its own as far as `seen`.
template <typename G>
__device__ __forceinline__ void sum_seen_keys(const Sequence<G>& at, Rows& z, int map,
                                              const uint32_t (&seen)[4]) {
  const float* before = at.sums(map) + lane_id() % 4 * 2;
  const float* of_tiles = shared_at<float>(G::kTileSums) + map * kDim + lane_id() % 4 * 2;
  const uint32_t tile = at.features(map) + at.warp * kTileBytes;
  clear(z);
#pragma unroll
  for (int s = 0; s < kBlocks; ++s) {
    const Right x = load_turned_operand<Right>(tile + (by_row(at.lane) ^ s * 32));
    add_part(z[s], seen, x.low), add_part(z[s], seen, x.high);
  }
  const float unit = power_of_2(-at.band_size(0, at.warp).features);
#pragma unroll
  for (int n = 0; n < kBlocks * 2; ++n) {
    float2 sum = *reinterpret_cast<const float2*>(before + n * 8);
#pragma unroll
    for (int t = 0; t < kTiles - 1; ++t) {
      if (t >= at.warp) continue;
      const float2 more = *reinterpret_cast<const float2*>(of_tiles + t * G::kMaps * kDim + n * 8);
      sum.x += more.x, sum.y += more.y;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& x = z[n / 2][n % 2][i];
      x = x * unit + (i % 2 ? sum.y : sum.x);
    }
  }
}

/// dq += the far fields' gradients; factors and dots go to the tile's record. With u = sum_j <dO_i
/// w, v_j> f(k_j) and z = sum_j f(k_j) over the keys that a query sees: df = factor (u - dot z),
/// and dot = <f, u> / norm.
template <typename G>
__device__ __forceinline__ void far_query(const Sequence<G>& at, Rows& dq) {
  const SweepArgs& args = at.args;
  const uint32_t live = at.live(at.tile());
  float* record = at.record(at.tile()) + row_of(0);
  const uint64_t values = rows_operand(at.band_chunk(1, 0));
  const int grad_shift = at.own_size(1).shift;
  Fragment seen = {{kHalfOnes, kHalfOnes, kHalfOnes, kHalfOnes}};  // of a row's own tile
  cut_at_diagonal</*kBefore=*/false>(seen);
  each_map_in_turn<G>([&](int l) {
    const uint64_t keys = rows_operand(at.features(l)), state = rows_operand(at.state(l));
    const int state_shift = State<G>::shift(l);
    Rows u;
    {
      Left grad[kBlocks], inner[kTiles];
      {
        Rows rows;
        load_numbers(rows, at.own_tile(1), at.lane);
        weigh<G>(grad, rows, l, power_of_2(grad_shift));
      }
      {
        Block products[kTiles];
        begin_warpgroup_products();
        begin_products</*kTurned=*/false>(products, grad, values, kToBlock);
        begin_products</*kTurned=*/true>(u, grad, state, kToTile);
        await_warpgroup_products();
        arrived(products), arrived(u);
        split_seen</*kBefore=*/false>(inner, products, at.warp, [&](int t, const Block& c) {
          return split_result(c, power_of_2(state_shift - together(at, l, t)));
        });
      }
      begin_warpgroup_products();
      begin_products</*kTurned=*/true, /*kAdd=*/true>(u, inner, keys, kToTile);
      await_warpgroup_products();
      arrived(u);
    }
    const float unit = power_of_2(-grad_shift - at.weight_shift(l) - state_shift);  // of u
    Rows f;
    float inverse_sums[2];
    load_features<G>(f, l, at.own_tile(0), at.lane, inverse_sums);
    float dot[2] = {0.f, 0.f}, factor[2];
    each_element([&](int s, int i) { dot[row_number(i)] += element(f, s, i) * element(u, s, i); });
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool inside = live >> row_of(2 * r) & 1;
      const float norm =
          at.row_sums() ? at.numbers(G::kNorms + l, at.warp)[row_of(2 * r)] : args.fixed_norm;
      const float inverse = inside ? reciprocal(norm) : 0.f;
      dot[r] = at.row_sums() ? quad_sum(dot[r]) * unit * inverse : 0.f;
      factor[r] = args.far_scale * inverse;
      if (lane_id() % 4 == 0) {
        record[(G::kNorms + l) * kBlockDim + r * 8] = factor[r];
        record[(G::kFarDots + l) * kBlockDim + r * 8] = -dot[r];
      }
    }
    Rows z;
    sum_seen_keys(at, z, l, seen.r);
    const float of_u[2] = {factor[0] * unit, factor[1] * unit},
                of_z[2] = {factor[0] * -dot[0], factor[1] * -dot[1]};
    each_element([&](int s, int i) {
      const int r = row_number(i);
      element(u, s, i) = of_u[r] * element(u, s, i) + of_z[r] * element(z, s, i);
    });
    with_map<G>(l, [&](auto map) { add_input_gradient<G>(map, dq, u, f, inverse_sums); });
  });
}

template <typename G>
__device__ __forceinline__ void walk_queries(Sequence<G>& at) {
  const SweepArgs& args = at.args;
  begin_walk(at);
  const Band<G> band(at);
#pragma unroll 1
  for (;;) {
    at.forget();
    const bool more = at.chunk + 1 < at.chunks;
    meet_block();
    Rows dq;
    if (args.has_near)
      near_query(band, dq);
    else
      clear(dq);
    if (more) at.leave_halo();
    at.await_features();
    far_query(at, dq);
    at.write(args.dq, dq);
    if (!more) break;
    ++at.chunk;
  }
}

template <typename G>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    query_kernel(const __grid_constant__ SweepArgs args) {
  Sequence<G> at(args);
  at.find_live();
  __syncthreads();
  if (threadIdx.x >= kTeamThreads) {
    leave_registers<G::kFeederRegisters>();
    Feeder<G>(at, args.k, args.v, args.q, args.grad_out).feed(1);
  } else {
    take_registers<G::kWalkerRegisters>();
    walk_queries(at);
  }
}

}  // namespace fmmformer::cuda::narrow_fp32
