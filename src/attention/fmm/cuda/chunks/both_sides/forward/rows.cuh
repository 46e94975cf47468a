// SPDX-License-Identifier: Apache-2.0
// A rows' warpgroup: out of a chunk's queries. The formulas are those of docs/math.md.
#pragma once

#include "attention/fmm/cuda/chunks/both_sides/forward/shape.cuh"

namespace fmmformer::cuda::chunks::both_sides::forward {

/// body(r, token) for rows g and g + 8, in one lane each.
template <typename G, typename Body>
__device__ __forceinline__ void each_row(const Walk<G>& walk, const Body& body) {
  if (lane_id() % 4 != 0) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int token = walk.chunk * kChunk + walk.tile * kBlockDim + row_of(2 * r);
    if (token < walk.args.length) body(r, token);
  }
}

/// From s = <f(q), f(k)> in the chunk and `before`, the product of f(q) with the sums of keys
/// before it: `scores`, weight * far_scale / norm * s as operands; f becomes f times that factor.
/// Writes normalisers.
template <typename G>
__device__ __forceinline__ void make_scores(Fragment (&scores)[kTiles], Fragment (&f)[G::kBlocks],
                                            Block (&s)[kTiles], const float (&before)[4],
                                            const Walk<G>& walk, int map, float weight) {
  const SweepArgs& args = walk.args;
  float sum[2] = {0.f, 0.f}, norm[2], factor[2];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    if (tile > walk.tile) continue;
    if (tile == walk.tile) cut_at_diagonal</*kBefore=*/false>(s[tile]);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i % 4 / 2] += s[tile][i / 4][i % 4];
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    norm[r] = has_row_sums(args) ? quad_sum(sum[r]) + before[2 * r] + before[2 * r + 1] + args.eps
                                 : args.fixed_norm;
    factor[r] = __fdividef(weight * args.far_scale, norm[r]);
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    scores[tile] = {{0, 0, 0, 0}};
    if (tile > walk.tile) continue;
#pragma unroll
    for (int i = 0; i < 8; ++i) s[tile][i / 4][i % 4] *= factor[i % 4 / 2];
    scores[tile] = rounded(s[tile]);
  }
  const SplitFactor split[2] = {SplitFactor(factor[0]), SplitFactor(factor[1])};
#pragma unroll
  for (int b = 0; b < G::kBlocks; ++b) scale_rows(f[b], split);
  if (!has_row_sums(args)) return;
  float* normalisers = args.normalisers + (int64_t(walk.pair) * G::kMaps + map) * args.length;
  each_row(walk, [&](int r, int token) { normalisers[token] = norm[r]; });
}

/// out = the far fields.
template <typename G>
__device__ __forceinline__ void set_far(Block (&out)[kTiles], const Walk<G>& walk,
                                        const Loader<G>& load, const float* weights, int group,
                                        int queries) {
  const int features = walk.features_of(group), state = walk.state_of(walk.chunk),
            values = walk.seen_of(walk.chunk) + G::kArea;
  Fragment f[G::kMaps][G::kBlocks], scores[G::kMaps][kTiles];
#pragma unroll
  for (int b = 0; b < G::kBlocks; ++b) {
    const Fragment x = load.left(queries, b);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t decay = decay_of(x.r[j]);
      each_map<G>([&](auto map) {
        constexpr int kMap = decltype(map)::value;
        f[kMap][b].r[j] = feature_pair<kMap>(x.r[j], decay);
      });
    }
  }
  clear(out);
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l) {
    Block s[kTiles];
    float before[4] = {0.f, 0.f, 0.f, 0.f};
    warpgroup::begin_columns<false>(s, f[l], [&](int) { return features + l * G::kArea; });
#pragma unroll
    for (int b = 0; b < G::kBlocks; ++b)
      Bf16::multiply(before, f[l][b], KeySumOperands<G>::load(walk.key_sums_of(walk.chunk), l, b));
    finish_products(s);
    make_scores<G>(scores[l], f[l], s, before, walk, l, weights[l]);
    begin_rows<G>(out, f[l], state + l * G::kArea);
    begin_rows<G>(out, scores[l], values);
    finish_products(out);
  }
}

/// Draws which elements of the band the warp's rows keep, and tells backward.
template <typename G>
__device__ __forceinline__ uint32_t draw_kept(const Walk<G>& walk,
                                              const Band<G, Sweep::kForward>& band) {
  const SweepArgs& args = walk.args;
  const int query = walk.chunk * kChunk + walk.tile * kBlockDim;
  uint32_t kept = 0;
#pragma unroll 1
  for (int k = 0; k < kMostGroups; ++k)
    kept |= kept_by_query(args, band.seed, walk.pair, query, query - k * kBlockDim) << 8 * k;
  if (args.chunk_states) {
    const int index = walk.tile * kWarpSize + lane_id();
    *dropout_word<G>(args, walk.pair, walk.chunk, index) = kept;
  }
  return kept;
}

/// out += weight * softmax v, of what dropout leaves; writes log_sum_exp.
template <typename G>
__device__ __forceinline__ void add_near(Block (&out)[kTiles], const Walk<G>& walk,
                                         const Loader<G>& load,
                                         const Band<G, Sweep::kForward>& band, float weight,
                                         int queries) {
  int seen[kMostGroups];
#pragma unroll
  for (int k = 0; k < kMostGroups; ++k) {
    const int index = walk.tile - k;
    seen[k] =
        walk.seen_of(index < 0 ? walk.chunk - 1 : walk.chunk) + (index & (kTiles - 1)) * G::kTile;
  }
  Block p[kMostGroups];
#pragma unroll
  for (int s = 0; s < kTiles; ++s) {
    const Fragment row = load.left(queries, s);
#pragma unroll
    for (int k = 0; k < kMostGroups; ++k) {
      if (s == 0) set_product(p[k], row, load.right(seen[k], s));
      if (s != 0) add_product(p[k], row, load.right(seen[k], s));
    }
  }
  float peak[2] = {-INFINITY, -INFINITY}, total[2] = {0.f, 0.f}, base[2], factor[2];
#pragma unroll
  for (int k = 0; k < kMostGroups; ++k) {
    const uint32_t inside = band.inside(k, walk.live_bits(walk.tile - k));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& score = p[k][i / 4][i % 4];
      score = inside >> i & 1 ? score : -INFINITY;
      peak[i % 4 / 2] = fmaxf(peak[i % 4 / 2], score);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    peak[r] = quad_max(peak[r]);
    base[r] = peak[r] == -INFINITY ? 0.f : peak[r] * band.scale;
  }
#pragma unroll
  for (int i = 0; i < kMostGroups * 8; ++i) {
    float& element = p[i / 8][i / 4 % 2][i % 4];
    element = Bf16::exp2(element * band.scale - base[i % 4 / 2]);
    total[i % 4 / 2] += element;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    total[r] = quad_sum(total[r]);
    factor[r] = total[r] > 0.f ? __fdividef(weight, total[r]) : 0.f;
    if constexpr (G::kDrops) factor[r] *= walk.args.keep_factor;
  }
  const uint32_t kept = G::kDrops ? draw_kept(walk, band) : ~0u;
#pragma unroll
  for (int k = 0; k < kMostGroups; ++k) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      p[k][i / 4][i % 4] *= kept >> (8 * k + i) & 1 ? factor[i % 4 / 2] : 0.f;
    add_columns<G>(out, rounded(p[k]), load, seen[k] + G::kArea, 0);
  }
  const uint32_t live = walk.live_bits(walk.tile);
  float* log_sum_exp = walk.args.log_sum_exp + int64_t(walk.pair) * walk.args.length;
  each_row(walk, [&](int r, int token) {
    // Infinity for rows that saw nothing or are dead: every later exp(score - log_sum_exp) is 0.
    const bool saw = (live >> row_of(2 * r) & 1) && total[r] > 0.f;
    log_sum_exp[token] = saw ? (base[r] + __log2f(total[r])) * (1.f / kLog2E) : INFINITY;
  });
}

/// Waits for the rows of the walk's chunk, and what the first of all sees before it.
template <typename G>
__device__ __forceinline__ void await_rows(const Walk<G>& walk, int group, int turn, int thread) {
  // The first chunk's rows are copied by threads, others by the engine; its turn 1 is over at
  // first.
  wait_for_copies();
  walk.copy_event(group).wait(turn ^ 1);
  if (!walk.args.token_mask) return;
#pragma unroll 1
  for (int chunk = walk.chunk - (walk.chunk == walk.begin); chunk <= walk.chunk; ++chunk) {
    const uint64_t live = walk.live(chunk);
    clear_dead<G>(walk.seen_of(chunk), live, thread);
    clear_dead<G>(walk.seen_of(chunk) + G::kArea, live, thread);
    if (chunk == walk.chunk) clear_dead<G>(walk.queries_of(chunk), live, thread);
  }
}
/// Asks for the rows of the warpgroup's next chunk. By one thread.
template <typename G>
__device__ __forceinline__ void begin_next_rows(const Walk<G>& walk, int group, int next) {
  // Their places were those of the chunk kRowGroups before this one, which the one after that
  // needed too.
  walk.await_done(walk.chunk - 2);
  const CopyEvent event = walk.copy_event(group);
  event.expect(3 * G::kArea);
#pragma unroll 1
  for (int tensor = kQueries; tensor <= kValues; ++tensor) {
    const int to = tensor == kQueries ? walk.queries_of(next)
                                      : walk.seen_of(next) + (tensor == kValues ? G::kArea : 0);
    begin_chunk(walk, tensor, next, to, event);
  }
}

/// Every kRowGroups-th chunk, from number `group` on, whose rows are under way. await_others(): the
/// cluster's other blocks need nothing of this one's memory any more.
template <typename G, typename AwaitOthers>
__device__ __forceinline__ void make_rows(Walk<G>& walk, Loader<G>& load, int group,
                                          const AwaitOthers& await_others) {
  const float* weights = shared_at<float>(Memory<G>::kWeights);
  const Band<G, Sweep::kForward> band(walk.args);
  int turn = 0;
  bool alone = walk.args.segments == 1;
#pragma unroll 1
  for (walk.chunk += group; walk.chunk < walk.end; walk.chunk += kRowGroups, turn ^= 1) {
    walk.forget(), load.forget();
    const int thread = thread_anew() % kGroupThreads;
    const int queries = walk.queries_of(walk.chunk) + walk.tile * G::kTile;
    Block out[kTiles];
    await_rows(walk, group, turn, thread);
    await_stores_read();  // of out, whose place the next queries get
    Event::of<G>(kAdded, group).await(turn ^ 1);
    meet_group(1 + group);
    make_key_features<G>(walk.seen_of(walk.chunk), walk.features_of(group), walk.args.head_dim,
                         walk.live(walk.chunk), thread);
    meet_group(1 + group);
    Event::of<G>(kFeaturesMade, group).say();
    Event::of<G>(kStateMade, group).await(turn);
    set_far(out, walk, load, weights, group, queries);
    Event::of<G>(kFarDone, group).say();
    if (const int next = walk.chunk + kRowGroups; next < walk.end) {
      if (!alone) await_others(), alone = true;
      if (thread == 0) begin_next_rows(walk, group, next);
    }
    if (walk.args.has_near) add_near(out, walk, load, band, weights[G::kMaps], queries);
    write_rows(walk, load, kOut, out, queries);
    walk.say_done(group);
  }
  await_stores_read();
  if (!alone) await_others();
}

}  // namespace fmmformer::cuda::chunks::both_sides::forward
