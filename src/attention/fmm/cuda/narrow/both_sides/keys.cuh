// SPDX-License-Identifier: Apache-2.0
// The keys' warpgroup: feature rows, dk, dv and the sums for weights' gradients.
#pragma once

#include "attention/fmm/cuda/narrow/both_sides/shape.cuh"
#include "attention/fmm/cuda/narrow/forward.cuh"

namespace fmmformer::cuda::narrow::both_sides {

/// Feature rows of the warp's queries times far_scale / norm, in shared memory.
template <typename G>
__device__ __forceinline__ void make_query_features(const Sequence<G>& at) {
  const Inputs<G> q(at.own_tile(0), at.lane);
  each_map<G>([&](auto map) {
    constexpr int l = map.value;
    Fragments f;
    q.features(map, f);
    float factor[2];
    load_factors(at, l, factor);
#pragma unroll
    for (int i = 0; i < kBlocks * 4; ++i) {
      uint32_t& x = f[i / 4].r[i % 4];
      x = as_bits(__hmul2(as_pair(x), both(factor[i % 2])));
    }
#pragma unroll
    for (int s = 0; s < kBlocks; ++s)
      store_matrix(query_features(at, l) + at.warp * kTileBytes + (by_row(at.lane) ^ s * 32), f[s]);
  });
}

/// value_sum and dk = the band's parts of the warp's keys, times the rows of the queries that see
/// them: of their own tile and of the two after, of which there is none after the last chunk.
template <typename G>
__device__ __forceinline__ void near_keys(const Walk<G>& at, Rows& dk, Rows& value_sum) {
  clear(dk), clear(value_sum);
  const uint32_t here = at.own_chunk(0, 0), after = at.own_chunk(0, 1) - kChunkBytes;
#pragma unroll
  for (int later = 0; later < kGroups; ++later) {
    const int tile = at.warp + later;
    if (tile >= kTiles && at.is_first()) break;
    const uint32_t parts =
        near_part(at, tile, Part::kProbabilities, kGroups - 1 - later) + at.lane * 16;
    const Fragment p = load_matrix(parts), ds = load_matrix(parts + kGroups * kPartBytes);
    const uint32_t rows = (tile < kTiles ? here : after) + tile * kTileBytes;
#pragma unroll
    for (int s = 0; s < kBlocks; ++s) {
      const uint32_t q = rows + (by_row(at.lane) ^ s * 32);
      add_product(dk[s], ds, of_right(load_turned_matrix(q)));
      add_product(value_sum[s], p, of_right(load_turned_matrix(q + G::kOwnSlots * kChunkBytes)));
    }
  }
}

/// Sums for the gradients of the fields' weights, over the warp's keys of v * (gradient of v before
/// its weight): element i is of channel g + i / 2 * 8, or sixteen further where t > 1, and of field
/// 2t % 4 + i % 2.
using WeightSums = float[4];

/// A field's gradient of v before its weight: adds it to dv and to the weight's sums.
template <typename G>
__device__ __forceinline__ void add_values(const Sequence<G>& at, int field, const Rows& value_sum,
                                           const Fragments& v, Rows& dv, WeightSums& sums) {
  // Sums of rows g and g + 8. Turned, tokens are columns: a product with ones adds them up, in a
  // column for the field and the block of channels.
  Fragment terms;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Fragment x = rounded(value_sum[i / 2]), &y = v[i / 2];
    const int low = i % 2 * 2;
    terms.r[i] = turned(as_bits(__hfma2(as_pair(x.r[low]), as_pair(y.r[low]),
                                        __hmul2(as_pair(x.r[low + 1]), as_pair(y.r[low + 1])))));
  }
  const int column = int(at.lane / 4);
  Bf16::multiply(sums, terms, {{column == field ? kOnes : 0, column == field + 4 ? kOnes : 0}});
  const float ones[2] = {1.f, 1.f};
  add_field(at, dv, value_sum, ones, field);
}
/// Where store_weight_sums finds them.
template <typename G>
__device__ __forceinline__ void show_weight_sums(const Sequence<G>& at, const WeightSums& sums) {
  const int first_field = int(at.quad() % 2) * 2, first_channel = int(at.quad() / 2) * kBlockDim;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int field = first_field + i % 2, channel = first_channel + int(at.row(i));
    if (field < G::kFields)
      shared_at<float>(G::kWeightSums)[(at.warp * G::kFields + field) * kDim + channel] = sums[i];
  }
}

/// Begins to load a chunk's rows of k or v to the ring's slot `offset` from this one. By a lane of
/// two of the keys' warps; someone tells the event what to expect.
template <typename G>
__device__ __forceinline__ void begin_key_rows(const Sequence<G>& at, const RowMaps& maps, int b,
                                               int chunk, int offset) {
  const int which = at.warp % 2;
  begin_chunk(at, maps, which ? kV : kK, b, chunk, at.band_chunk(which, offset),
              copy_event<G>(kKeyRows));
}
/// When they have arrived. A barrier must follow.
template <typename G>
__device__ __forceinline__ void clear_dead_keys(const Sequence<G>& at, int chunk, int offset) {
  if (chunk < 0) return;  // there are zeros
  const uint32_t live = at.live(chunk * kTiles + at.warp);
  clear_dead(at, at.band_chunk(0, offset), live), clear_dead(at, at.band_chunk(1, offset), live);
  if (live != 0xffffu) show_to_warpgroup();
}
/// Begins to load what the next chunk needs and has not: the rows before it; of the next pair, its
/// own as well. By a lane of each of the keys' warps, when queries have seen the rows before these
/// arrive.
template <typename G>
__device__ __forceinline__ void begin_next_keys(const Walk<G>& at, const RowMaps& maps) {
  if (at.warp == 0)
    copy_event<G>(kKeyRows).expect(at.is_last() ? 4 * kChunkBytes : 2 * kChunkBytes);
  if (at.warp < 2)
    begin_key_rows(at, maps, at.next_b(), at.next_chunk() - 1, -2);
  else if (at.is_last())
    begin_key_rows(at, maps, at.next_b(), at.next_chunk(), -1);
}
template <typename G>
__device__ __forceinline__ void finish_next_keys(const Walk<G>& at) {
  copy_event<G>(kKeyRows).wait((at.turn + 1) & 1);
  if (at.is_last()) clear_dead_keys(at, at.next_chunk(), -1);
  clear_dead_keys(at, at.next_chunk() - 1, -2);
}
/// dv += a map's gradients, given the keys' rows x. With T the state of the queries after the chunk
/// and f their scaled rows in it: dv = w (x T + (x f^T) dO).
template <typename G>
__device__ __forceinline__ void add_far_values(const Sequence<G>& at, int map, const Fragments& x,
                                               const Fragments& v,
                                               const Diagonal</*kBefore=*/true>& diagonal, Rows& dv,
                                               WeightSums& weight_sums) {
  const uint64_t grads = rows_operand(at.own_chunk(1, 0)),
                 queries = rows_operand(query_features(at, 0)) + map * kChunkStep,
                 state = rows_operand(at.state(0)) + map * (G::kStateBytes >> 4);
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
    round_seen(inner, scores, at.warp, diagonal);
  }
  begin_warpgroup_products();
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
    begin_32<true, true>(value_sum, inner[t], grads + t * (kTileBytes >> 4));
  await_warpgroup_products();
  arrived(value_sum);
  add_values(at, map, value_sum, v, dv, weight_sums);
}

/// Products with a tile of queries, less the queries' dots.
__device__ __forceinline__ Fragment less_dots(const Fragment& products, const Dots& dots,
                                              int tile) {
  Fragment f;
#pragma unroll
  for (int j = 0; j < 4; ++j)
    f.r[j] = as_bits(__hadd2(as_pair(products.r[j]), as_pair(dots.pair(tile, j / 2))));
  return f;
}
/// dk += a map's gradients: dx = v w T^T - y + (v w dO^T - dots) f, y being the sums of later
/// queries' rows times dots; v w dO^T are inner products that queries have made. Calls read() when
/// they are read.
template <typename G, typename Read>
__device__ __forceinline__ void add_far_keys(const Sequence<G>& at, int map, const Fragments& x,
                                             const Fragments& of_tile,
                                             const Diagonal</*kBefore=*/true>& diagonal, Rows& dk,
                                             const Read& read) {
  constexpr int kTileStep = kTileBytes >> 4;
  const uint64_t queries = rows_operand(query_features(at, 0)) + map * kChunkStep,
                 state = rows_operand(at.state(0)) + map * (G::kStateBytes >> 4);
  Fragments v = {of_tile[0], of_tile[1]};
  weigh(at, v, map);
  Rows dx;
  const float* after = later_sums(at, at.chunk) + map * kDim + at.quad() * 2;
#pragma unroll
  for (int n = 0; n < kBlocks * 2; ++n) {
    const float2 pair = *reinterpret_cast<const float2*>(after + n * 8);
    float* c = dx[n / 2][n % 2];
    c[0] = c[2] = pair.x, c[1] = c[3] = pair.y;
  }
  const Dots dots(at, map);
  Fragment inner[kTiles];
  make_seen(inner, at.warp, diagonal, [&](auto own, int t) {
    return less_dots(load_matrix(inner_part(at, map, t, own.value) + at.lane * 16), dots, t);
  });
  read();
  begin_warpgroup_products();
  begin_32<true, true>(dx, v[0], state), begin_32<true, true>(dx, v[1], state + kTileStep);
#pragma unroll
  for (int t = 0; t < kTiles; ++t) begin_32<true, true>(dx, inner[t], queries + t * kTileStep);
  commit_warpgroup_products();
  if constexpr (G::kUnit) {
    await_committed_products();
    arrived(dx);
    const Inputs<G> k(at.band_tile(0, at.warp), at.lane);
    with_map<G>(map, [&](auto number) { k.add_unit_gradient(number, dk, dx); });
  } else {  // slopes, while products are under way
    const Slopes<G> slopes(map, x);
    await_committed_products();
    arrived(dx);
    slopes.add(dk, dx);
  }
}

/// dv and dk += the far fields' gradients, a map after the other, as queries get done with them.
template <typename G>
__device__ __forceinline__ void far_fields(const Walk<G>& at, const Fragments& v, Rows& dk,
                                           Rows& dv, WeightSums& weight_sums) {
  const Diagonal</*kBefore=*/true> diagonal(at.lane);
  each_map_in_turn<G>([&](int l) {
    Fragments x;
    load_rows(x, at.features(l) + at.warp * kTileBytes, by_row(at.lane));
    add_far_values(at, l, x, v, diagonal, dv, weight_sums);
    named_barrier(kInnerMade + l, kBlockThreads);
    add_far_keys(at, l, x, v, diagonal, dk, [&] {
      if (l < G::kMaps - 1) return;
      if (at.goes_on()) finish_next_keys(at);
      arrive_at_barrier(kInnerRead, kBlockThreads);
    });
  });
}
/// The sums of later queries' feature rows times dots, for the chunk before: sixteen channels at a
/// time, more of them by the warps whose keys fewer queries of the chunk see.
template <typename G>
__device__ __forceinline__ void add_dots(const Sequence<G>& at) {
#pragma unroll 1
  for (int block = kWarps - 1 - at.warp; block < 2 * G::kMaps; block += kWarps) {
    const int channel = block * kBlockDim + int(at.row(0));
    const float* from = later_sums(at, at.chunk) + channel;
    float c[4] = {from[0], 0.f, from[8], 0.f};
    const uint32_t rows = query_features(at, block / 2) + (by_column(at.lane) ^ block % 2 * 32);
    const Dots dots(at, block / 2);
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
      Bf16::multiply(c, load_turned_matrix(rows + t * kTileBytes),
                     {{dots.pair(t, 0), dots.pair(t, 1)}});
    float* to = later_sums(at, at.chunk - 1) + channel;
    if (at.quad() == 0) to[0] = c[0], to[8] = c[2];
  }
}
template <typename G>
__device__ __forceinline__ void walk_keys(Walk<G>& at, const RowMaps& maps) {
  static_assert(kDim == kWarpSize);
  WeightSums weight_sums = {};
  arrive_at_barrier(kStateTaken, kBlockThreads);  // there is none yet
#pragma unroll 1
  for (;;) {
    at.forget();
    const uint32_t live = at.live(at.tile());
    await_stores_read<0>();  // of results, where features come or the next results
    __syncwarp();
    make_key_features(at, live);
    // Before the queries ask for the next: an event tells two turns apart, not three.
    copy_event<G>(kQueryRows).wait(at.turn & 1);
    show_to_warpgroup();
    arrive_at_barrier(kKeysShown, kBlockThreads);
    copy_event<G>(kFarEntry).wait(at.turn & 1);
    named_barrier(kRowsCleared, kBlockThreads);
    if (at.is_first() && at.warp < G::kMaps)
      later_sums(at, at.chunk)[at.warp * kDim + int(at.lane)] = 0.f;
    make_query_features(at);
    show_to_warpgroup();
    arrive_at_barrier(kFeaturesMade, kBlockThreads);
    named_barrier(kPartsMade, kBlockThreads);
    if (at.goes_on() && at.lane == 0) begin_next_keys(at, maps);
    Fragments v;
    load_rows(v, at.band_tile(1, at.warp), by_row(at.lane));
    Rows dk, dv;
    clear(dv);
    if (at.args.has_near) {
      Rows value_sum;
      near_keys(at, dk, value_sum);
      add_values(at, G::kMaps, value_sum, v, dv, weight_sums);
    } else {
      clear(dk);
    }
    arrive_at_barrier(kPartsTaken, kBlockThreads);
    named_barrier(kStateShown, kBlockThreads);
    far_fields(at, v, dk, dv, weight_sums);
    if (at.goes_on()) arrive_at_barrier(kStateTaken, kBlockThreads);
    if (!at.is_last()) add_dots(at);
    const uint32_t stage = kMemory + G::kKeyStage + at.warp * kTileBytes;
    stage_rows(at, dk, stage, live), stage_rows(at, dv, stage + kChunkBytes, live);
    show_to_warpgroup();
    begin_store(at, maps, kDk, stage, at.tile());
    begin_store(at, maps, kDv, stage + kChunkBytes, at.tile());
    if (!at.goes_on()) break;
    at.go_on();
  }
  show_weight_sums(at, weight_sums);
  await_stores_read<0>();
}

}  // namespace fmmformer::cuda::narrow::both_sides
