// SPDX-License-Identifier: Apache-2.0
// The forward sweep: out, log_sum_exp, normalisers.
#pragma once

#include "attention/fmm/cuda/narrow_fp32/feeder.cuh"
#include "attention/fmm/cuda/narrow_fp32/near.cuh"
#include "attention/fmm/cuda/narrow_fp32/state.cuh"

namespace fmmformer::cuda::narrow_fp32 {

/// out += weight * far fields of the warp's queries; writes normalisers, [maps][length].
template <typename G>
__device__ __forceinline__ void far_forward(const Sequence<G>& at, Rows& out, float* normalisers) {
  const SweepArgs& args = at.args;
  const uint64_t values = rows_operand(at.band_chunk(1, 0));
  const int shift = at.own_size(0).features;
  each_map_in_turn<G>([&](int l) {
    const uint64_t keys = rows_operand(at.features(l)), state = rows_operand(at.state(l));
    const int state_shift = State<G>::shift(l);
    Left f[kBlocks];
    float norm[2] = {0.f, 0.f};
    {
      Rows rows;
      float unused[2];
      load_features<G>(rows, l, at.own_tile(0), at.lane, unused);
      const float* before = at.sums(l) + lane_id() % 4 * 2;
#pragma unroll
      for (int n = 0; n < kBlocks * 2; ++n) {
        const float2 z = *reinterpret_cast<const float2*>(before + n * 8);
        const float* c = rows[n / 2][n % 2];
        norm[0] += c[0] * z.x + c[1] * z.y, norm[1] += c[2] * z.x + c[3] * z.y;
      }
      split_rows(f, rows, power_of_2(shift));
    }
    Rows sum;
    Left inner[kTiles];
    {
      Block scores[kTiles];
      begin_warpgroup_products();
      begin_products</*kTurned=*/false>(scores, f, keys, kToBlock);
      begin_products</*kTurned=*/false>(sum, f, state, kToBlock);
      await_warpgroup_products();
      arrived(scores), arrived(sum);
      split_seen</*kBefore=*/false>(inner, scores, at.warp, [&](int t, const Block& c) {
        const float unit = power_of_2(-shift - at.band_size(0, t).features);
#pragma unroll
        for (int r = 0; r < 2; ++r)
          norm[r] += unit * (c[0][2 * r] + c[0][2 * r + 1] + (c[1][2 * r] + c[1][2 * r + 1]));
        return split_result(c, power_of_2(state_shift - together(at, l, t)));
      });
    }
    begin_warpgroup_products();
    begin_products</*kTurned=*/true, /*kAdd=*/true>(sum, inner, values, kToTile);
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      norm[r] = at.row_sums() ? quad_sum(norm[r]) + args.eps : args.fixed_norm;
      const int token = at.tile() * kBlockDim + row_of(2 * r);
      if (at.row_sums() && lane_id() % 4 == 0 && token < args.length)
        normalisers[int64_t(l) * args.length + token] = norm[r];
      factor[r] = args.far_scale * reciprocal(norm[r]) * power_of_2(-shift - state_shift);
    }
    await_warpgroup_products();
    arrived(sum);
    add_field(at, out, sum, factor, l);
  });
}

/// What walkers do while the first chunk is on its way.
template <typename G>
__device__ __forceinline__ void begin_walk(const Sequence<G>& at) {
  at.load_weights();
  if (at.args.has_near) Band<G>::fill(at.args);
}

template <typename G>
__device__ __forceinline__ void walk_forward(Sequence<G>& at) {
  const SweepArgs& args = at.args;
  begin_walk(at);
  const Band<G> band(at);
  float* log_sum_exp = args.log_sum_exp + at.row_index(1, 0);
  float* normalisers = args.normalisers + at.row_index(G::kMaps, 0);
#pragma unroll 1
  for (;;) {
    at.forget();
    const bool more = at.chunk + 1 < at.chunks;
    meet_block();
    Rows out;
    if (args.has_near)
      near_forward(band, out, log_sum_exp);
    else
      clear(out);
    if (more) at.leave_halo();
    at.await_features();
    far_forward(at, out, normalisers);
    at.write(args.out, out);
    if (!more) break;
    ++at.chunk;
  }
}

template <typename G>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    forward_kernel(const __grid_constant__ SweepArgs args) {
  Sequence<G> at(args);
  at.find_live();
  __syncthreads();
  if (threadIdx.x >= kTeamThreads) {
    leave_registers<G::kFeederRegisters>();
    Feeder<G>(at, args.k, args.v, args.q, args.grad_out).feed(1);
  } else {
    take_registers<G::kWalkerRegisters>();
    walk_forward(at);
  }
}

}  // namespace fmmformer::cuda::narrow_fp32
