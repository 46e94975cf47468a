// SPDX-License-Identifier: Apache-2.0
// The queries' warpgroup: dq and row dots. The formulas are those of docs/math.md.
#pragma once

#include "attention/fmm/cuda/narrow/both_sides/entry.cuh"
#include "attention/fmm/cuda/narrow/both_sides/state.cuh"
#include "attention/fmm/cuda/narrow/forward.cuh"

namespace fmmformer::cuda::narrow::both_sides {

/// dq = the near field's gradient; what keys need of it goes to near_part. The field's weights have
/// the factors of scores and of kept probabilities.
template <typename G>
__device__ __forceinline__ void near_queries(const Band<G>& band, Rows& dq) {
  const Sequence<G>& at = band.at;
  const float* log_sums = reinterpret_cast<const float*>(near_numbers<G>(at.warp, at.chunk, false));
  const float log_sum[2] = {log_sums[at.row(0)], log_sums[at.row(2)]};
  uint32_t kept = ~0u;
  if (G::kDrops)
    kept = reinterpret_cast<const uint32_t*>(near_numbers<G>(at.warp, at.chunk, true))[at.lane];
  Block p[kGroups], dp[kGroups];
  uint32_t live_keys[kGroups];
  band.find_live(live_keys);
  {
    Fragments q, grad;
    load_rows(q, at.own_tile(0), by_row(at.lane));
    load_rows(grad, at.own_tile(1), by_row(at.lane));
    weigh(at, grad, G::kMaps);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      band.scores(p[group], q, group);
      band.products(dp[group], grad, group);
    }
  }
  band.hide_dead(p, live_keys);
  float dot[2] = {0.f, 0.f};
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    Block probabilities;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float &x = p[group][i / 4][i % 4], &g = dp[group][i / 4][i % 4];
      if (is_unseen(group, i)) {
        x = g = probabilities[i / 4][i % 4] = 0.f;
        continue;
      }
      x = Bf16::exp2(x * band.scale - log_sum[i % 4 / 2]);
      const bool keeps = !G::kDrops || (kept & kept_bit(group, i)) != 0;
      probabilities[i / 4][i % 4] = keeps ? x : 0.f;
      g *= probabilities[i / 4][i % 4];
      dot[i % 4 / 2] += g;
    }
    store_part(near_part(at, at.warp, Part::kProbabilities, group), at.lane,
               rounded(probabilities));
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) dot[r] = quad_sum(dot[r]);
  clear(dq);
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& x = p[group][i / 4][i % 4];
      if (!is_unseen(group, i)) x = dp[group][i / 4][i % 4] - x * dot[i % 4 / 2];
    }
    const Fragment gradients = rounded(p[group]);
    store_part(near_part(at, at.warp, Part::kGradients, group), at.lane, gradients);
    band.add_rows(dq, gradients, 0, group);
  }
}

/// A map's slopes times factor, which scaled rows f tell: min(f, factor), or f (1 - t) for tanh1.
template <typename G>
__device__ __forceinline__ Slopes<G> scaled_slopes(int map, const Fragments& f,
                                                   const float (&factor)[2],
                                                   const float (&inverse)[2]) {
  return Slopes<G>(
      map, f, [&](Pair phi, int r) { return __hmin2(phi, both(factor[r])); },
      [&](Pair phi, int r) { return __hmul2(phi, __hfma2(phi, both(-inverse[r]), both(2.f))); });
}
/// dq += gradient with respect to a map's unit rows before their factor, times factor and slope.
template <typename G>
__device__ __forceinline__ void add_unit_query_gradient(const Sequence<G>& at, int map,
                                                        const float (&factor)[2], Rows& dq,
                                                        Rows& gradient) {
#pragma unroll
  for (int i = 0; i < kBlocks * 8; ++i) gradient[i / 8][i / 4 % 2][i % 4] *= factor[i % 4 / 2];
  const Inputs<G> q(at.own_tile(0), at.lane);
  with_map<G>(map, [&](auto number) { q.add_unit_gradient(number, dq, gradient); });
}

/// Begins z, the sum of the keys' feature rows that each query sees: of the chunk's by a triangle
/// of ones; of those before by two more of the state's rows.
template <typename G>
__device__ __forceinline__ void begin_key_sums(const Sequence<G>& at, Rows& z, uint64_t keys,
                                               uint64_t state) {
  constexpr int kTileStep = kTileBytes >> 4;
  begin_warpgroup_products();
  // The product takes sixteen rows, and these are the last of the state: with eight before them.
  begin_shared_32<false>(z, ninth_and_tenth(at), state + kBlocks * kTileStep - kTileStep / 2);
#pragma unroll
  for (int t = 0; t < kTiles; ++t) begin_shared_32<true>(z, seen_keys(at, t), keys + t * kTileStep);
  commit_warpgroup_products();
}

/// Where keys find a map's inner products of the warp's queries.
template <typename G>
__device__ __forceinline__ void store_inner(const Sequence<G>& at, int map,
                                            const Fragment (&inner)[kTiles]) {
  with_warp(at.warp, [&](auto number) {
#pragma unroll
    for (int t = 0; t <= number.value; ++t)
      store_part(inner_part(at, map, number.value, t), at.lane, inner[t]);
  });
}

/// dq += the far fields' gradients; for the keys dots, with a minus, and inner products. With u =
/// sum_j <dO_i w, v_j> f(k_j) and z = sum_j f(k_j) over the keys that a query sees: df = factor (u
/// - dot z), and dot = <f, u> / norm.
template <typename G>
__device__ __forceinline__ void far_queries(const Sequence<G>& at, Rows& dq) {
  constexpr int kTileStep = kTileBytes >> 4;
  constexpr float kTiny = 1e-30f;  // for dead rows, whose factor is 0
  const uint64_t values = rows_operand(at.band_chunk(1, 0));
  const Diagonal</*kBefore=*/false> diagonal(at.lane);
  const float of_dots = at.row_sums() ? -reciprocal(at.args.far_scale) : 0.f;
  each_map_in_turn<G>([&](int l) {
    const uint64_t keys = rows_operand(at.features(0)) + l * kChunkStep,
                   state = rows_operand(kMemory + G::kBefore) + l * (Entry::kStateBytes >> 4);
    Rows u, z;
    Fragments f;
    float factor[2], rounded_factor[2], inverse[2];
    {
      Fragments grad;
      load_rows(grad, at.own_tile(1), by_row(at.lane));
      weigh(at, grad, l);
      Fragment inner[kTiles];
      {
        Block products[kTiles];
        begin_warpgroup_products();
        begin_64<false>(products, grad[0], values), begin_64<true>(products, grad[1], values + 2);
        begin_32<false, true>(u, grad[0], state);
        begin_32<true, true>(u, grad[1], state + kTileStep);
        await_warpgroup_products();
        arrived(products), arrived(u);
        begin_key_sums(at, z, keys, state);  // while the others are rounded
        round_seen(inner, products, at.warp, diagonal);
      }
      begin_warpgroup_products();
#pragma unroll
      for (int t = 0; t < kTiles; ++t) begin_32<true, true>(u, inner[t], keys + t * kTileStep);
      commit_warpgroup_products();
      // While products are under way:
      if (l == 0) named_barrier(kFeaturesMade, kBlockThreads);
      load_rows(f, query_features(at, l) + at.warp * kTileBytes, by_row(at.lane));
      load_factors(at, l, factor);
      Bf16::unpack(Bf16::pack(factor[0], factor[1]), rounded_factor[0], rounded_factor[1]);
#pragma unroll
      for (int r = 0; r < 2; ++r)
        // Rows have their factor rounded: a dot must not, being the same for all channels.
        inverse[r] = reciprocal(fmaxf(rounded_factor[r], kTiny));
      await_committed_products();
      arrived(u), arrived(z);
      if (l == 0) named_barrier(kPartsTaken, kBlockThreads);
      store_inner(at, l, inner);
    }
    float dot[2], sums[4];
    sum_columns(sums, products_of(f[0], rounded(u[0])), products_of(f[1], rounded(u[1])));
#pragma unroll
    for (int r = 0; r < 2; ++r) dot[r] = sums[2 * r] * (of_dots * (factor[r] * inverse[r]));
    const uint32_t r = at.quad();
    store_shared_if(r < 2, Dots::place(at, l, r), Elem(r ? dot[1] : dot[0]));
    arrive_at_barrier(kInnerMade + l, kBlockThreads);
#pragma unroll
    for (int i = 0; i < kBlocks * 8; ++i)
      u[i / 8][i / 4 % 2][i % 4] += dot[i % 4 / 2] * z[i / 8][i / 4 % 2][i % 4];
    if constexpr (G::kUnit)
      add_unit_query_gradient(at, l, factor, dq, u);
    else
      scaled_slopes<G>(l, f, factor, inverse).add(dq, u);
  });
}

/// Waits for what the chunk at hand needs of rows. A barrier must follow.
template <typename G>
__device__ __forceinline__ void finish_query_rows(const Walk<G>& at) {
  const uint32_t live = at.live(at.tile());
  copy_event<G>(kKeyRows).wait(at.turn & 1), copy_event<G>(kQueryRows).wait(at.turn & 1);
  clear_dead(at, at.own_chunk(0, 0), live), clear_dead(at, at.own_chunk(1, 0), live);
  if (live != 0xffffu) show_to_warpgroup();
}
template <typename G>
__device__ __forceinline__ void walk_queries(Walk<G>& at, const RowMaps& maps) {
  StateAfter<G> state;
  state.begin_pair();
  const Band<G> band(at);
#pragma unroll 1
  for (;;) {
    at.forget();
    arrive_at_barrier(kRowsCleared, kBlockThreads);
    Rows dq;
    if (at.args.has_near)
      near_queries(band, dq);
    else
      clear(dq);
    arrive_at_barrier(kPartsMade, kBlockThreads);
    copy_event<G>(kFarEntry).wait(at.turn & 1);
    await_stores_read<0>();  // of dq, where the next rows come
    named_barrier(kStateTaken, kBlockThreads);
    state.show(at);
    show_to_warpgroup();
    arrive_at_barrier(kStateShown, kBlockThreads);
    named_barrier(kKeysShown, kBlockThreads);
    const bool asks = at.goes_on() && at.lane == 0;
    if (asks) begin_query_rows(at, maps, at.next_b(), at.next_chunk(), at.next_entry(), -1);
    far_queries(at, dq);
    if (!at.is_last()) state.begin(at);
    const uint32_t live = at.live(at.tile());
    named_barrier(kStateRead, kThreads);
    if (asks) begin_far_entry<G>(at.warp, at.next_entry(), at.next_chunk());
    if (at.chunk == 1) clear_state_before(at);
    const uint32_t stage = at.own_chunk(at.warp / 2, 1) + (2 + at.warp % 2) * kTileBytes;
    stage_rows(at, dq, stage, live);
    show_to_warpgroup();
    begin_store(at, maps, kDq, stage, at.tile());
    state.finish();
    if (at.is_last()) state.begin_pair();
    named_barrier(kInnerRead, kBlockThreads);
    if (!at.goes_on()) break;
    at.go_on();
    finish_query_rows(at);
    __syncwarp();
  }
  await_stores_read<0>();
}

}  // namespace fmmformer::cuda::narrow::both_sides
