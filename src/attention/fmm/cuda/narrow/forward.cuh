// SPDX-License-Identifier: Apache-2.0
// The forward sweep: out, log_sum_exp, normalisers.
#pragma once

#include "attention/fmm/cuda/narrow/features.cuh"
#include "attention/fmm/cuda/narrow/forward_state.cuh"
#include "attention/fmm/cuda/narrow/near.cuh"
#include "attention/fmm/cuda/narrow/row_copies.cuh"
#include "attention/fmm/cuda/narrow/state.cuh"

namespace fmmformer::cuda::narrow {

/// Feature rows of the warp's keys in shared memory; zeros for those that do not live.
template <typename G>
__device__ __forceinline__ void make_key_features(const Sequence<G>& at, uint32_t live) {
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
  if (live != 0xffffu) {
#pragma unroll 1
    for (int i = int(at.lane); i < G::kMaps * kTileBytes / 16; i += kWarpSize) {
      const int map = i / (kTileBytes / 16), in_tile = i % (kTileBytes / 16);
      if (!(live >> in_tile / 4 & 1))
        shared_at<uint4>(G::kFeatures + map * kChunkBytes + tile)[in_tile] = make_uint4(0, 0, 0, 0);
    }
    __syncwarp();
  }
}
/// ... and their sums, for all to see. A barrier must follow.
template <typename G>
__device__ __forceinline__ void show_keys(const Sequence<G>& at) {
  make_key_features(at, at.live(at.tile()));
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l) sum_tile(at, l, {{kOnes, kOnes, kOnes, kOnes}});
  show_to_warpgroup();
}

/// Where forward keeps feature rows of the warp's queries, from which all maps' come at once: of
/// the second map in place of the queries; of the third in place of the keys that no later query's
/// band reaches, of half of the warps, and of the others in a place of its own.
template <typename G>
__device__ __forceinline__ uint32_t kept_features(const Sequence<G>& at, int map) {
  if (map == 1) return at.own_tile(0);
  return at.warp < 2 ? at.band_tile(0, at.warp) : kMemory + G::kThird + (at.warp - 2) * kTileBytes;
}
/// Makes them, and the first map's. After a barrier: the bands of all warps are done.
template <typename G>
__device__ __forceinline__ void make_query_features(const Sequence<G>& at, Fragments& first) {
  const Inputs<G> q(at.own_tile(0), at.lane);
  each_map<G>([&](auto map) {
    if constexpr (map.value > 0) {
      Fragments f;
      q.features(map, f);
#pragma unroll
      for (int s = 0; s < kBlocks; ++s)
        store_matrix(kept_features(at, map.value) + (by_row(at.lane) ^ s * 32), f[s]);
    }
  });
  q.features(MapIndex<0>(), first);
  __syncwarp();
}

/// out += weight * far fields of the warp's queries, given their feature rows of the first map;
/// keeps factors. While products are under way, draws what the next chunk's band keeps, if there is
/// one, and returns it.
template <typename G>
__device__ __forceinline__ uint32_t far_forward(const Band<G>& band, uint32_t live, bool more,
                                                Fragments& f, Rows& out) {
  const Sequence<G>& at = band.at;
  const SweepArgs& args = at.args;
  const uint64_t values = values_and_ones(at);
  const Diagonal</*kBefore=*/false> diagonal(at.lane);
  // Numbers of a row are written by one lane; two more have the same.
  const uint32_t r = at.quad() % 2, row = at.row(0) + r * 8;
  float* kept = at.kept(Entry::factors(G::kMaps), kBlockDim) + row;
  const bool lives = live >> row & 1;
  uint32_t next_kept = 0;
  each_map_in_turn<G>([&](int l) {
    if (l > 0) load_rows(f, kept_features(at, l), by_row(at.lane));
    const uint64_t keys = rows_operand(at.features(0)) + l * kChunkStep,
                   state = rows_operand(at.state(0)) + l * (G::kStateBytes >> 4);
    Fragment inner[kTiles];
    {
      Block scores[kTiles];
      begin_warpgroup_products();
      begin_64<false>(scores, f[0], keys), begin_64<true>(scores, f[1], keys + 2);
      await_warpgroup_products();
      arrived(scores);
      round_seen(inner, scores, at.warp, diagonal);
    }
    Rows sum;
    float norms[4];  // two of the columns that follow v's
    begin_warpgroup_products();
    begin_40<false, false>(sum, norms, f[0], state);
    begin_40<true, false>(sum, norms, f[1], state + 2);
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
      begin_40<true, true>(sum, norms, inner[t], values + t * kToNextValues);
    commit_warpgroup_products();
    if (G::kDrops && more) {
#pragma unroll 1
      for (int group = l; group < kGroups; group += G::kMaps)
        next_kept |= band.draw(at.tile() + kTiles, group);
    }
    await_committed_products();
    arrived(sum);
    asm volatile("" : "+f"(norms[0]), "+f"(norms[1]), "+f"(norms[2]), "+f"(norms[3])::"memory");
    float norm[2], factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      norm[i] = norms[2 * i] + norms[2 * i + 1] + args.eps;
      if (!at.row_sums()) norm[i] = args.fixed_norm;
      factor[i] = args.far_scale * reciprocal(norm[i]);
    }
    kept[0] = !lives ? 0.f : r ? factor[1] : factor[0];
    kept += kRows;
    add_field(at, out, sum, factor, l);
  });
  return next_kept;
}

/// What the queries' sweep begins with: the first chunk, and zeros before it.
template <typename G>
__device__ __forceinline__ void begin_walk(const Sequence<G>& at) {
  const SweepArgs& args = at.args;
  at.find_live();
  at.find_bases();
  __syncthreads();
  if (at.warp >= 2) at.copy_band(-1, kK, kV);
  at.copy_band(0, kK, kV);
  at.copy_own(0, kQ, kGradOut);
  // While rows are on their way:
  const float weight = at.own_weight();
  at.clear_states();
  if (args.has_near) Band<G>::fill(args);
  at.keep_weight(weight);
  wait_for_copies();
  __syncthreads();
}

/// A chunk's numbers, of all warps: among what is kept for backward, by one thread; or as
/// log_sum_exp, [length], and normalisers, [maps][length], by all.
template <typename G>
__device__ __forceinline__ const char* kept_numbers(int chunk) {
  return shared_at<char>(G::kKeptNumbers + (chunk & 1) * G::kKeptBytes);
}
template <typename G>
__device__ __forceinline__ void keep_numbers(const Sequence<G>& at, int chunk) {
  constexpr int kBytes = Entry::number_bytes(G::kMaps);
  begin_bulk_store(at.entry(chunk) + Entry::factors(G::kMaps), kept_numbers<G>(chunk), kBytes);
}
template <typename G>
__device__ void write_numbers(const Sequence<G>& at, int chunk) {
  const SweepArgs& args = at.args;
  const float* numbers = reinterpret_cast<const float*>(kept_numbers<G>(chunk));
  const int row = threadIdx.x % kRows, token = chunk * kRows + row;
  if (token >= args.length) return;
#pragma unroll 1
  for (int field = threadIdx.x / kRows; field <= G::kMaps; field += kThreads / kRows) {
    const float x = numbers[field * kRows + row];
    if (field == G::kMaps && args.has_near)
      args.log_sum_exp[at.row_index(1, 0) + token] = x * (1.f / kLog2E);
    if (field < G::kMaps && at.row_sums())
      args.normalisers[at.row_index(G::kMaps, field) + token] = args.far_scale * reciprocal(x);
  }
}
/// Begins to keep the state before the chunk. By one thread.
template <typename G>
__device__ __forceinline__ void keep_state(const Sequence<G>& at) {
  unsigned char* to = at.entry(at.chunk);
  static_assert(G::kStateBytes == Entry::kStateBytes);
  begin_bulk_store(to, shared_at<char>(G::kStates), G::kMaps * Entry::kStateBytes);
}

/// Begins to load rows of the next chunk: k, v and q, a warp each. One thread takes three times as
/// long, and its warp's products are the whole warpgroup's.
template <typename G>
__device__ __forceinline__ void begin_next_rows(const Sequence<G>& at, const RowMaps& maps) {
  if (at.lane != 0) return;
  const CopyEvent event = copy_event<G>(0);
  const int next = at.chunk + 1;
  if (at.warp == 1) {
    event.expect(3 * kChunkBytes);
    begin_chunk(at, maps, kK, at.b, next, at.band_chunk(0, 1), event);
  } else if (at.warp == 2) {
    begin_chunk(at, maps, kV, at.b, next, at.band_chunk(1, 1), event);
  } else if (at.warp == 3) {
    begin_chunk(at, maps, kQ, at.b, next, at.own_chunk(0, 1), event);
  }
}
/// Waits for rows of the chunk `offset` from this one. A barrier must follow.
template <typename G>
__device__ __forceinline__ void finish_rows(const Sequence<G>& at, int offset) {
  const uint32_t live = at.live(at.tile() + offset * kTiles);
  copy_event<G>(0).wait((at.chunk + offset) & 1);
  clear_dead(at, at.band_chunk(0, offset), live), clear_dead(at, at.band_chunk(1, offset), live);
  clear_dead(at, at.own_chunk(0, offset), live);
}
/// Begins to load rows of the first chunk, and zeros before it.
template <typename G>
__device__ __forceinline__ void begin_first_rows(const Sequence<G>& at, const RowMaps& maps) {
  const CopyEvent event = copy_event<G>(0);
  if (threadIdx.x == 0) event.init();
  __syncthreads();
  if (at.lane != 0) return;
  if (at.warp == 0) {
    event.expect(5 * kChunkBytes);
    begin_chunk(at, maps, kK, at.b, 0, at.band_chunk(0, 0), event);
  } else if (at.warp == 1) {
    begin_chunk(at, maps, kV, at.b, 0, at.band_chunk(1, 0), event);
  } else if (at.warp == 2) {
    begin_chunk(at, maps, kQ, at.b, 0, at.own_chunk(0, 0), event);
  } else {
    begin_chunk(at, maps, kK, at.b, -1, at.band_chunk(0, -1), event);
    begin_chunk(at, maps, kV, at.b, -1, at.band_chunk(1, -1), event);
  }
}
/// What else the walk begins with.
template <typename G>
__device__ __forceinline__ void fill_shared(const Sequence<G>& at, float weight) {
  at.clear_states(), at.fill_units();
  at.find_live();
  if (at.args.has_near) Band<G>::fill(at.args);
  at.keep_weight(weight);
  show_to_warpgroup();
}

template <typename G>
__device__ __forceinline__ uint32_t out_stage(const Sequence<G>& at) {
  return kMemory + G::kStage + at.warp * kTileBytes;
}
template <typename G>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    forward_kernel(const __grid_constant__ SweepArgs args, const __grid_constant__ RowMaps maps) {
  Sequence<G> at(args);
  if (at.b >= args.batch) return;
  begin_first_rows(at, maps);
  // While rows are on their way:
  const float weight = at.own_weight();
  const Band<G> band(at);
  uint32_t kept = G::kDrops ? band.draw(at.tile()) : 0;
  fill_shared(at, weight);
  __syncthreads();
  finish_rows(at, 0);
  __syncthreads();
  ForwardState<G> state;
#pragma unroll 1
  for (;;) {
    at.forget();
    const bool more = at.chunk + 1 < at.chunks;
    const uint32_t live = at.live(at.tile());
    Rows out;
    if (args.has_near)
      near_forward(band, kept, out);
    else
      clear(out);
    make_key_features(at, live);
    // For all that was written since the last chunk's: a fence waits for stores to memory, too, and
    // those of the far fields are long ago.
    show_to_warpgroup();
    if (at.chunk > 0) begin_store(at, maps, kOut, out_stage(at), at.tile() - kTiles);
    __syncthreads();
    if (at.chunk > 0) {
      if (!args.chunk_states)
        write_numbers(at, at.chunk - 1);
      else if (at.warp == 0 && at.lane == 0)
        keep_state(at), keep_numbers(at, at.chunk - 1), commit_bulk_stores();
    }
    if (more) begin_next_rows(at, maps);
    state.begin(at);
    Fragments f;
    make_query_features(at, f);
    state.finish();
    kept = far_forward(band, live, more, f, out);
    await_stores_read<0>();  // of out and the state before
    stage_rows(at, out, out_stage(at), live);
    if (more) finish_rows(at, 1);
    __syncthreads();
    if (!more) break;
    state.show(at);
    ++at.chunk;
  }
  show_to_warpgroup();
  begin_store(at, maps, kOut, out_stage(at), at.tile());
  if (args.made.sums) state.store(at);
  __syncthreads();
  if (!args.chunk_states)
    write_numbers(at, at.chunk);
  else if (threadIdx.x == 0)
    keep_numbers(at, at.chunk), commit_bulk_stores();
  await_stores_read<0>();
}

}  // namespace fmmformer::cuda::narrow
