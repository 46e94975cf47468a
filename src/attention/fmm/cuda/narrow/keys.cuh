// SPDX-License-Identifier: Apache-2.0
// The keys' sweep of backward, from the last chunk to the first: dk, dv and the sums for weights'
// gradients.
#pragma once

#include "attention/fmm/cuda/narrow/features.cuh"
#include "attention/fmm/cuda/narrow/near.cuh"
#include "attention/fmm/cuda/narrow/state.cuh"
#include "attention/fmm/cuda/narrow/weight_sums.cuh"

namespace fmmformer::cuda::narrow {

/// Feature rows of the warp's queries times far_scale / norm, their sums times the rows' dots, and
/// the dots themselves, all with a minus where dots are, for all to see. A barrier must follow.
template <typename G>
__device__ __forceinline__ void show_queries(const Sequence<G>& at) {
  const float* numbers = at.numbers(0, at.warp);
  // Twice each: a product's sum begins with them.
  float4* dots = shared_at<float4>(G::kDots) + at.warp * 8;
  if (lane_id() < G::kMaps * 8) {
    const int map = lane_id() / 8, row = lane_id() % 8 * 2;
    const float2 pair =
        *reinterpret_cast<const float2*>(numbers + (G::kFarDots + map) * kBlockDim + row);
    dots[map * (kRows / 2) + lane_id() % 8] = make_float4(pair.x, pair.y, pair.x, pair.y);
  }
  const Inputs<G> q(at.band_tile(0, at.warp), at.lane);
  each_map<G>([&](auto map) {
    constexpr int l = map.value;
    Fragments f;
    q.features(map, f);
    Pair factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r)
      factor[r] = both(numbers[(G::kNorms + l) * kBlockDim + row_of(2 * r)]);
#pragma unroll
    for (int i = 0; i < kBlocks * 4; ++i) {
      uint32_t& x = f[i / 4].r[i % 4];
      x = as_bits(__hmul2(as_pair(x), factor[i % 2]));
    }
#pragma unroll
    for (int s = 0; s < kBlocks; ++s)
      store_matrix(at.features(l) + at.warp * kTileBytes + (by_row(at.lane) ^ s * 32), f[s]);
  });
  __syncwarp();
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l) {
    const float4 low = dots[l * (kRows / 2) + lane_id() % 4],
                 high = dots[l * (kRows / 2) + lane_id() % 4 + 4];
    sum_tile(at, l, equal_rows(Bf16::pack(low.x, low.y), Bf16::pack(high.x, high.y)));
  }
  show_to_warpgroup();
}

/// dk and dv += the far fields' gradients. With T the state of the queries after the chunk, f their
/// rows in it, and x the rows of keys: dv = w (x T + (x f^T) dO) and
/// dx = v w T^T - y + (v w dO^T - dots) f.
template <typename G>
__device__ __forceinline__ void far_key(const Sequence<G>& at, Rows& dk, Rows& dv,
                                        float (&weight_sums)[G::kFields]) {
  constexpr int kTileStep = kTileBytes >> 4;
  const uint64_t grads = rows_operand(at.band_chunk(1, 0));
  const Diagonal</*kBefore=*/true> diagonal(at.lane);
  each_map_in_turn<G>([&](int l) {
    const uint64_t queries = rows_operand(at.features(0)) + l * kChunkStep,
                   state = rows_operand(at.state(0)) + l * (G::kStateBytes >> 4);
    Fragments x, v;
    with_map<G>(l, [&](auto map) { make_features<G>(map, x, at.own_tile(0), at.lane); });
    Fragment inner[kTiles];
    {
      Block scores[kTiles];
      begin_warpgroup_products();
      begin_64<false>(scores, x[0], queries), begin_64<true>(scores, x[1], queries + 2);
      await_warpgroup_products();
      arrived(scores);
      round_seen(inner, scores, at.warp, diagonal);
    }
    {
      Rows value_sum;
      begin_warpgroup_products();
      begin_32<false, false>(value_sum, x[0], state);
      begin_32<true, false>(value_sum, x[1], state + 2);
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
        begin_32<true, true>(value_sum, inner[t], grads + t * kTileStep);
      await_warpgroup_products();
      arrived(value_sum);
      load_rows(v, at.own_tile(1), by_row(at.lane));
      const float sum = sum_channel(value_sum, v, at.lane);
#pragma unroll
      for (int i = 0; i < G::kMaps; ++i) weight_sums[i] += i == l ? sum : 0.f;
      const float ones[2] = {1.f, 1.f};
      add_field(at, dv, value_sum, ones, l);
    }
    weigh(at, v, l);
    {
      Block products[kTiles];
      const float4* dots = shared_at<float4>(G::kDots) + l * (kRows / 2) + lane_id() % 4;
#pragma unroll
      for (int n = 0; n < kTiles * 2; ++n) {
        const float4 pair = dots[n * 4];
        float* c = products[n / 2][n % 2];
        c[0] = pair.x, c[1] = pair.y, c[2] = pair.z, c[3] = pair.w;
      }
      begin_warpgroup_products();
      begin_64<true>(products, v[0], grads), begin_64<true>(products, v[1], grads + 2);
      await_warpgroup_products();
      arrived(products);
      round_seen(inner, products, at.warp, diagonal);
    }
    Rows dx;
    const float* after = at.sums(l) + lane_id() % 4 * 2;
#pragma unroll
    for (int n = 0; n < kBlocks * 2; ++n) {
      const float2 pair = *reinterpret_cast<const float2*>(after + n * 8);
      float* c = dx[n / 2][n % 2];
      c[0] = c[2] = pair.x, c[1] = c[3] = pair.y;
    }
    begin_warpgroup_products();
    begin_32<true, true>(dx, v[0], state), begin_32<true, true>(dx, v[1], state + kTileStep);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) begin_32<true, true>(dx, inner[t], queries + t * kTileStep);
    await_warpgroup_products();
    arrived(dx);
    add_input_gradient<G>(l, x, at.own_tile(0), at.lane, dk, dx);
  });
}

template <typename G>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    key_kernel(const __grid_constant__ SweepArgs args) {
  Sequence<G> at(args);
  if (at.b >= args.batch) return;
  at.chunk = at.chunks - 1;
  const float weight = at.own_weight();
  at.find_live();
  at.find_bases();
  at.clear_states();
  if (args.has_near) Band<G>::fill(args);
  at.keep_weight(weight);
  __syncthreads();
  at.copy_band(0, kQ, kGradOut);
  at.copy_own(0, kK, kV);
  wait_for_copies();
  __syncthreads();
  State<G> state;
  float weight_sums[G::kFields] = {};
  const Band<G> band(at);
#pragma unroll 1
  for (;;) {
    at.forget();
    const bool more = at.chunk > 0;
    Rows dk, dv;
    clear(dv);
    if (args.has_near) {
      const float ones[2] = {1.f, 1.f};
      Rows value_sum;
      near_key(band, dk, value_sum);
      Fragments v;
      load_rows(v, at.own_tile(1), by_row(at.lane));
      weight_sums[G::kMaps] += sum_channel(value_sum, v, at.lane);
      add_field(at, dv, value_sum, ones, G::kMaps);
    } else {
      clear(dk);
    }
    show_queries(at);
    __syncthreads();
    if (more) at.copy_band(-1, kQ, kGradOut);
    commit_copies();
    far_key(at, dk, dv, weight_sums);
    at.write(kDk, dk, at.own_tile(0)), at.write(kDv, dv, at.own_tile(1));
    __syncwarp();
    if (more) at.copy_own(-1, kK, kV);
    commit_copies();
    if (more) state.add(at, at.band_chunk(1, 0));
    wait_for_older_copies();
    __syncthreads();
    if (!more) break;
    state.show(at);
    --at.chunk;
    wait_for_copies();
    __syncwarp();
  }
  float* all = shared_at<float>(G::kFeatures);  // of use to no one any more
#pragma unroll
  for (int field = 0; field < G::kFields; ++field) *weight_sum(at, all, field) = weight_sums[field];
  __syncthreads();
  if (args.weight_sums) store_weight_sums(at, all);
}

}  // namespace fmmformer::cuda::narrow
