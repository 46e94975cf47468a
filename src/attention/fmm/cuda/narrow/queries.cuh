// SPDX-License-Identifier: Apache-2.0
// The queries' sweep of backward: dq and row dots, and dropout's bits for the keys' sweep.
#pragma once

#include "attention/fmm/cuda/narrow/forward.cuh"

namespace fmmformer::cuda::narrow {

/// z = the sum of the feature rows that each of the warp's queries sees: of those before the chunk,
/// of the chunk's tiles before its own, and of its own as far as `seen`.
template <typename G>
__device__ __forceinline__ void sum_seen_keys(const Sequence<G>& at, Rows& z, int map,
                                              const Fragment& seen) {
  const float* before = at.sums(map) + lane_id() % 4 * 2;
  const float* of_tiles = shared_at<float>(G::kTileSums) + map * kDim + lane_id() % 4 * 2;
#pragma unroll
  for (int n = 0; n < kBlocks * 2; ++n) {
    float2 sum = *reinterpret_cast<const float2*>(before + n * 8);
#pragma unroll
    for (int t = 0; t < kTiles - 1; ++t) {
      if (t >= at.warp) continue;
      const float2 more = *reinterpret_cast<const float2*>(of_tiles + t * G::kMaps * kDim + n * 8);
      sum.x += more.x, sum.y += more.y;
    }
    z[n / 2][n % 2][0] = z[n / 2][n % 2][2] = sum.x;
    z[n / 2][n % 2][1] = z[n / 2][n % 2][3] = sum.y;
  }
  const uint32_t tile = at.features(map) + at.warp * kTileBytes;
#pragma unroll
  for (int s = 0; s < kBlocks; ++s)
    add_product(z[s], seen, of_right(load_turned_matrix(tile + (by_row(at.lane) ^ s * 32))));
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
  const Diagonal</*kBefore=*/false> diagonal(at.lane);
  Fragment seen = {{kOnes, kOnes, kOnes, kOnes}};  // of a row's own tile
  diagonal.cut(seen);
  each_map_in_turn<G>([&](int l) {
    const uint64_t keys = rows_operand(at.features(0)) + l * kChunkStep,
                   state = rows_operand(at.state(0)) + l * (G::kStateBytes >> 4);
    constexpr int kTileStep = kTileBytes >> 4;
    Rows u;
    {
      Fragments grad;
      load_rows(grad, at.own_tile(1), by_row(at.lane));
      weigh(at, grad, l);
      Fragment inner[kTiles];
      {
        Block products[kTiles];
        begin_warpgroup_products();
        begin_64<false>(products, grad[0], values), begin_64<true>(products, grad[1], values + 2);
        await_warpgroup_products();
        arrived(products);
        round_seen(inner, products, at.warp, diagonal);
      }
      begin_warpgroup_products();
      begin_32<false, true>(u, grad[0], state);
      begin_32<true, true>(u, grad[1], state + kTileStep);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) begin_32<true, true>(u, inner[t], keys + t * kTileStep);
      await_warpgroup_products();
      arrived(u);
    }
    Fragments f;
    with_map<G>(l, [&](auto map) { make_features<G>(map, f, at.own_tile(0), at.lane); });
    float dot[2] = {0.f, 0.f}, factor[2];
#pragma unroll
    for (int i = 0; i < kBlocks * 4; ++i) {
      float low, high;
      Bf16::unpack(f[i / 4].r[i % 4], low, high);
      const float* pair = u[i / 4][i % 4 / 2] + i % 2 * 2;
      dot[i % 2] += low * pair[0] + high * pair[1];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool inside = live >> row_of(2 * r) & 1;
      const float norm =
          at.row_sums() ? at.numbers(G::kNorms + l, at.warp)[row_of(2 * r)] : args.fixed_norm;
      const float inverse = inside ? reciprocal(norm) : 0.f;
      dot[r] = at.row_sums() ? quad_sum(dot[r]) * inverse : 0.f;
      factor[r] = args.far_scale * inverse;
      if (lane_id() % 4 == 0) {
        record[(G::kNorms + l) * kBlockDim + r * 8] = factor[r];
        record[(G::kFarDots + l) * kBlockDim + r * 8] = -dot[r];
      }
    }
    Rows z;
    sum_seen_keys(at, z, l, seen);
#pragma unroll
    for (int i = 0; i < kBlocks * 8; ++i) {
      float& element = u[i / 8][i / 4 % 2][i % 4];
      element = factor[i % 4 / 2] * (element - dot[i % 4 / 2] * z[i / 8][i / 4 % 2][i % 4]);
    }
    add_input_gradient<G>(l, f, at.own_tile(0), at.lane, dq, u);
  });
}

template <typename G>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    query_kernel(const __grid_constant__ SweepArgs args) {
  Sequence<G> at(args);
  if (at.b >= args.batch) return;
  begin_walk(at);
  State<G> state;
  const Band<G> band(at);
#pragma unroll 1
  for (;;) {
    at.forget();
    const bool more = at.chunk + 1 < at.chunks;
    Rows dq;
    if (args.has_near)
      near_query(band, dq);
    else
      clear(dq);
    show_keys(at);
    __syncthreads();
    if (more) at.copy_band(1, kK, kV);
    commit_copies();
    far_query(at, dq);
    at.write(kDq, dq, at.own_tile(0));
    __syncwarp();
    if (more) at.copy_own(1, kQ, kGradOut);
    commit_copies();
    if (more) state.add(at, at.band_chunk(1, 0));
    wait_for_older_copies();
    __syncthreads();
    if (!more) break;
    state.show(at);
    ++at.chunk;
    wait_for_copies();
    __syncwarp();
  }
}

}  // namespace fmmformer::cuda::narrow
