// SPDX-License-Identifier: Apache-2.0
// The forward sweep: out, log_sum_exp, normalisers.
#pragma once

#include "attention/fmm/cuda/narrow/near.cuh"
#include "attention/fmm/cuda/narrow/state.cuh"

namespace fmmformer::cuda::narrow {

/// Feature rows of the warp's keys, and their sums, for all to see; zeros for dead ones. A barrier
/// must follow.
template <typename G>
__device__ __forceinline__ void show_keys(const Sequence<G>& at) {
  const Inputs<G> k(at.band_tile(0, at.warp), at.lane);
  const uint32_t tile = at.warp * kTileBytes;
  each_map<G>([&](auto map) {
    Fragments f;
    k.features(map, f);
#pragma unroll
    for (int s = 0; s < kBlocks; ++s)
      store_matrix(at.features(map.value) + tile + (by_row(at.lane) ^ s * 32), f[s]);
  });
  __syncwarp();
  const uint32_t live = at.live(at.tile());
  if (live != 0xffffu) {
#pragma unroll 1
    for (int i = lane_id(); i < G::kMaps * kTileBytes / 16; i += kWarpSize) {
      const int map = i / (kTileBytes / 16), in_tile = i % (kTileBytes / 16);
      if (!(live >> in_tile / 4 & 1))
        shared_at<uint4>(G::kFeatures + map * kChunkBytes + tile)[in_tile] = make_uint4(0, 0, 0, 0);
    }
    __syncwarp();
  }
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l) sum_tile(at, l, {{kOnes, kOnes, kOnes, kOnes}});
  show_to_warpgroup();
}

/// out += weight * far fields of the warp's queries; writes normalisers, [maps][length].
template <typename G>
__device__ __forceinline__ void far_forward(const Sequence<G>& at, Rows& out, float* normalisers) {
  const SweepArgs& args = at.args;
  const Inputs<G> q(at.own_tile(0), at.lane);
  const uint64_t values = rows_operand(at.band_chunk(1, 0));
  each_map_in_turn<G>([&](int l) {
    Fragments f;
    with_map<G>(l, [&](auto map) { q.features(map, f); });
    const uint64_t keys = rows_operand(at.features(l)), state = rows_operand(at.state(l));
    Fragment inner[kTiles];
    {
      Block scores[kTiles];
      begin_warpgroup_products();
      begin_64<false>(scores, f[0], keys), begin_64<true>(scores, f[1], keys + 2);
      await_warpgroup_products();
      arrived(scores);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) inner[t] = rounded(scores[t]);
    }
    cut</*kBefore=*/false>(inner, at.warp);
    Rows sum;
    float before[4];  // sums of feature rows: two of the columns that follow v's
    begin_warpgroup_products();
    begin_40<false>(sum, before, f[0], state), begin_40<true>(sum, before, f[1], state + 2);
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
      begin_32<true, true>(sum, inner[t], values + t * (kTileBytes >> 4));
    float inside[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int t = 0; t < kTiles; ++t) Bf16::multiply(inside, inner[t], {{kOnes, kOnes}});
    await_warpgroup_products();
    arrived(sum);
    asm volatile("" : "+f"(before[0]), "+f"(before[1]), "+f"(before[2]), "+f"(before[3])::"memory");
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float mine = before[2 * r] + before[2 * r + 1];  // right in a quad's first lane
      float norm = inside[2 * r] + __shfl_sync(~0u, mine, lane_id() & ~3) + args.eps;
      if (!at.row_sums()) norm = args.fixed_norm;
      const int token = at.tile() * kBlockDim + row_of(2 * r);
      if (at.row_sums() && lane_id() % 4 == 0 && token < args.length)
        normalisers[int64_t(l) * args.length + token] = norm;
      factor[r] = args.far_scale * reciprocal(norm);
    }
    add_field(at, out, sum, factor, l);
  });
}

/// What the sweeps over keys begin with: the first chunk, and zeros before it.
template <typename G>
__device__ __forceinline__ void begin_walk(const Sequence<G>& at) {
  const SweepArgs& args = at.args;
  at.find_live();
  at.load_weights();
  if (args.has_near) Band<G>::fill(args);
  __syncthreads();
  if (at.warp >= 2) at.copy_band(-1, args.k, args.v);
  at.copy_band(0, args.k, args.v);
  at.copy_own(0, args.q, args.grad_out);
  wait_for_copies();
  __syncthreads();
}

template <typename G>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    forward_kernel(const __grid_constant__ SweepArgs args) {
  Sequence<G> at(args);
  begin_walk(at);
  State<G> state;
  const Band<G> band(at);
  float* log_sum_exp = args.log_sum_exp + at.row_index(1, 0);
  float* normalisers = args.normalisers + at.row_index(G::kMaps, 0);
#pragma unroll 1
  for (;;) {
    at.forget();
    const bool more = at.chunk + 1 < at.chunks;
    Rows out;
    if (args.has_near)
      near_forward(band, out, log_sum_exp);
    else
      clear(out);
    show_keys(at);
    __syncthreads();
    if (more) at.copy_band(1, args.k, args.v);
    commit_copies();
    far_forward(at, out, normalisers);
    at.write(args.out, out, at.own_tile(0));
    __syncwarp();
    if (more) at.copy_own(1, args.q, args.grad_out);
    commit_copies();
    if (more || args.made.sums) state.add(at, at.band_chunk(1, 0));
    wait_for_older_copies();
    __syncthreads();
    if (!more) break;
    state.show(at);
    ++at.chunk;
    wait_for_copies();
    __syncwarp();
  }
  if (args.made.sums) state.store(at);
}

}  // namespace fmmformer::cuda::narrow
