// SPDX-License-Identifier: Apache-2.0
// The keys' warpgroup: feature rows, dk, dv and the sums for weights' gradients.
#pragma once

#include "attention/fmm/cuda/narrow/both_sides/shape.cuh"
#include "attention/fmm/cuda/narrow/forward.cuh"

namespace fmmformer::cuda::narrow::both_sides {

/// sum = the band's parts of the warp's keys, times the rows of the queries that see them: of their
/// own tile and of the two after. A product of the warpgroup has all six tiles; where a warp's keys
/// are not seen, its parts are zero.
template <typename G>
__device__ __forceinline__ void near_rows(const Sequence<G>& at, Part part, int tensor, Rows& sum) {
  Fragment parts[kNearTiles];
  const auto of_warp = [&](auto number) {
    constexpr int kOwn = number.value;
#pragma unroll
    for (int t = 0; t < kNearTiles; ++t) {
      const int group = kGroups - 1 - (t - kOwn);
      if (group < 0 || group >= kGroups)
        parts[t] = {{0, 0, 0, 0}};
      else
        parts[t] = load_part(near_part(at, t, part, group), at.lane);
    }
  };
  with_warp(at.warp, of_warp);
  constexpr int kTileStep = kTileBytes >> 4;
  const uint64_t rows = rows_operand(at.own_chunk(tensor, 0)),
                 later = rows_operand(at.own_chunk(tensor, 1));
  begin_warpgroup_products();
  begin_32<false, true>(sum, parts[0], rows);
#pragma unroll
  for (int t = 1; t < kTiles; ++t) begin_32<true, true>(sum, parts[t], rows + t * kTileStep);
#pragma unroll
  for (int t = kTiles; t < kNearTiles; ++t)
    begin_32<true, true>(sum, parts[t], later + (t - kTiles) * kTileStep);
  await_warpgroup_products();
  arrived(sum);
}
/// What is after the sequence: no part of the band, and rows of zeros. By all threads.
template <typename G>
__device__ __forceinline__ void clear_later_tiles(const Sequence<G>& at) {
  constexpr int kOfTile = 2 * kGroups * kPartBytes / 16;
  for (int i = threadIdx.x; i < (kNearTiles - kTiles) * kOfTile; i += kBlockThreads) {
    const uint32_t tile = near_part(at, kTiles + i / kOfTile, Part::kProbabilities, 0) - at.memory;
    *shared_at<uint4>(tile + i % kOfTile * 16) = make_uint4(0, 0, 0, 0);
  }
  for (int i = threadIdx.x; i < 2 * (kNearTiles - kTiles) * kTileBytes / 16; i += kBlockThreads) {
    const int tensor = i % 2, piece = i / 2;
    const uint32_t to = at.own_chunk(tensor, 1) - at.memory + piece * 16;
    *shared_at<uint4>(to) = make_uint4(0, 0, 0, 0);
  }
}

/// Sums for the gradients of the fields' weights, over the warp's keys of v * (gradient of v before
/// its weight): [s][i] is of channel s * 16 + g + i / 2 * 8 and field 2t + i % 2.
using WeightSums = float[kBlocks][4];

/// A field's gradient of v before its weight: adds it to dv and to the weight's sums.
template <typename G>
__device__ __forceinline__ void add_values(const Sequence<G>& at, int field, const Rows& value_sum,
                                           const Fragments& v, Rows& dv, WeightSums& sums) {
  // Turned, tokens are columns: a product with ones adds them up, in the field's column alone.
  const uint32_t column = int(at.lane / 4) == field ? kOnes : 0;
#pragma unroll
  for (int s = 0; s < kBlocks; ++s)
    Bf16::multiply(sums[s], turned(products_of(v[s], rounded(value_sum[s]))), {{column, column}});
  const float ones[2] = {1.f, 1.f};
  add_field(at, dv, value_sum, ones, field);
}
/// Where store_weight_sums finds them.
template <typename G>
__device__ __forceinline__ void show_weight_sums(const Sequence<G>& at, const WeightSums& sums) {
#pragma unroll
  for (int i = 0; i < kBlocks * 4; ++i) {
    const int field = int(at.quad()) * 2 + i % 2, channel = i / 4 * kBlockDim + int(at.row(i % 4));
    if (field < G::kFields)
      shared_at<float>(G::kWeightSums)[(at.warp * G::kFields + field) * kDim + channel] =
          sums[i / 4][i % 4];
  }
}

/// dv += the far fields' gradients. With T the state of the queries after the chunk, f their scaled
/// rows in it, and x the rows of keys: dv = w (x T + (x f^T) dO).
template <typename G>
__device__ __forceinline__ void far_values(const Sequence<G>& at, const Fragments& v, Rows& dv,
                                           WeightSums& weight_sums) {
  const uint64_t grads = rows_operand(at.own_chunk(1, 0));
  each_map_in_turn<G>([&](int l) {
    const uint64_t queries = rows_operand(query_features(at, 0)) + l * kChunkStep,
                   state = rows_operand(at.state(0)) + l * (G::kStateBytes >> 4);
    Fragments x;
    load_rows(x, at.features(l) + at.warp * kTileBytes, by_row(at.lane));
    Fragment inner[kTiles];
    Rows value_sum;
    {
      Block scores[kTiles];
      begin_warpgroup_products();
      begin_64<false>(scores, x[0], queries), begin_64<true>(scores, x[1], queries + 2);
      begin_32<false, false>(value_sum, x[0], state);
      begin_32<true, false>(value_sum, x[1], state + 2);
      await_warpgroup_products();
      arrived(scores), arrived(value_sum);
      round_seen</*kBefore=*/true>(inner, scores, at.warp);
    }
    begin_warpgroup_products();
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
      begin_32<true, true>(value_sum, inner[t], grads + t * (kTileBytes >> 4));
    await_warpgroup_products();
    arrived(value_sum);
    add_values(at, l, value_sum, v, dv, weight_sums);
  });
}

/// Products with a tile of queries, less the queries' dots.
template <typename G>
__device__ __forceinline__ Fragment less_dots(const Sequence<G>& at, const Fragment& products,
                                              int map, int tile) {
  Fragment f;
#pragma unroll
  for (int j = 0; j < 4; ++j)
    f.r[j] = as_bits(__hadd2(as_pair(products.r[j]), as_pair(dot_pair(at, map, tile, j / 2))));
  return f;
}
/// dk += the far fields' gradients: dx = v w T^T - y + (v w dO^T - dots) f, y being the sums of
/// later queries' rows times dots.
template <typename G>
__device__ __forceinline__ void far_keys(const Sequence<G>& at, const Fragments& of_tile,
                                         Rows& dk) {
  constexpr int kTileStep = kTileBytes >> 4;
  const uint64_t grads = rows_operand(at.own_chunk(1, 0));
  each_map_in_turn<G>([&](int l) {
    const uint64_t queries = rows_operand(query_features(at, 0)) + l * kChunkStep,
                   state = rows_operand(at.state(0)) + l * (G::kStateBytes >> 4);
    Fragments v = {of_tile[0], of_tile[1]};
    weigh(at, v, l);
    Fragment inner[kTiles];
    {
      Block products[kTiles];
      begin_warpgroup_products();
      begin_64<false>(products, v[0], grads), begin_64<true>(products, v[1], grads + 2);
      await_warpgroup_products();
      arrived(products);
      make_seen</*kBefore=*/true>(inner, at.warp,
                                  [&](int t) { return less_dots(at, rounded(products[t]), l, t); });
    }
    Rows dx;
    const float* after = later_sums(at, at.chunk) + l * kDim + at.quad() * 2;
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
    Fragments x;
    load_rows(x, at.features(l) + at.warp * kTileBytes, by_row(at.lane));
    await_warpgroup_products();
    arrived(dx);
    with_map<G>(l, [&](auto map) {
      add_input_gradient<G>(map, x, at.band_tile(0, at.warp), at.lane, dk, dx);
    });
  });
}

/// Begins to load a chunk's rows of k and v. By one thread, which tells the event what to expect.
template <typename G>
__device__ __forceinline__ void begin_key_rows(const Sequence<G>& at, const RowMaps& maps,
                                               int offset) {
  const CopyEvent event = copy_event<G>(kKeyRows);
  begin_chunk(at, maps, kK, at.chunk + offset, at.band_chunk(0, offset), event);
  begin_chunk(at, maps, kV, at.chunk + offset, at.band_chunk(1, offset), event);
}
/// When they have arrived. A barrier must follow.
template <typename G>
__device__ __forceinline__ void clear_dead_keys(const Sequence<G>& at, int offset) {
  if (at.chunk + offset < 0) return;  // there are zeros
  const uint32_t live = at.live(at.tile() + offset * kTiles);
  clear_dead(at, at.band_chunk(0, offset), live), clear_dead(at, at.band_chunk(1, offset), live);
  if (live != 0xffffu) show_to_warpgroup();
}
template <typename G>
__device__ __forceinline__ void walk_keys(Sequence<G>& at, const RowMaps& maps) {
  WeightSums weight_sums = {};
  arrive_at_barrier(kQueriesRead, kBlockThreads);  // there is nothing to read yet
#pragma unroll 1
  for (;;) {
    at.forget();
    const bool more = at.chunk > 0;
    await_stores_read<0>();  // of results, where features come or the next results
    __syncwarp();
    make_key_features(at);
    // Before the queries ask for the next: an event tells two turns apart, not three.
    copy_event<G>(kQueryRows).wait((at.chunks - 1 - at.chunk) & 1);
    show_to_warpgroup();
    arrive_at_barrier(kKeysShown, kBlockThreads);
    named_barrier(kPartsMade, kBlockThreads);
    // Queries have seen the rows before these arrive.
    if (more && threadIdx.x == kThreads) {
      copy_event<G>(kKeyRows).expect(2 * kChunkBytes);
      begin_key_rows(at, maps, -2);
    }
    Fragments v;
    load_rows(v, at.band_tile(1, at.warp), by_row(at.lane));
    Rows dk, dv;
    clear(dv);
    if (at.args.has_near) {
      Rows value_sum;
      near_rows(at, Part::kProbabilities, 1, value_sum);
      near_rows(at, Part::kGradients, 0, dk);
      add_values(at, G::kMaps, value_sum, v, dv, weight_sums);
    } else {
      clear(dk);
    }
    named_barrier(kQueriesShown, kBlockThreads);
    far_values(at, v, dv, weight_sums);
    Fragments of_values;
#pragma unroll
    for (int s = 0; s < kBlocks; ++s) of_values[s] = rounded(dv[s]);
    if (more) copy_event<G>(kKeyRows).wait((at.chunks - at.chunk) & 1), clear_dead_keys(at, -2);
    arrive_at_barrier(kPartsRead, kBlockThreads);
    named_barrier(kDotsMade, kBlockThreads);
    far_keys(at, v, dk);
    if (more) arrive_at_barrier(kQueriesRead, kBlockThreads);
    const uint32_t stage = at.memory + G::kKeyStage + at.warp * kTileBytes;
    stage_rows(at, dk, stage), stage_rows(at, of_values, stage + kChunkBytes);
    show_to_warpgroup();
    begin_store(at, maps, kDk, stage, at.tile());
    begin_store(at, maps, kDv, stage + kChunkBytes, at.tile());
    if (!more) break;
    at.step_back();
  }
  show_weight_sums(at, weight_sums);
  await_stores_read<0>();
}

}  // namespace fmmformer::cuda::narrow::both_sides
