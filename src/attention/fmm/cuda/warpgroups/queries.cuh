// SPDX-License-Identifier: Apache-2.0
// The rows of the query sweep: dq, from the scores' gradients g = grad_out v^T. The formulas are
// those of docs/math.md.
#pragma once

#include "attention/fmm/cuda/warpgroups/probabilities.cuh"

namespace fmmformer::cuda::warpgroups {

/// From probabilities p, of which some are `kept`: `near` becomes the gradients of scores in the
/// near field, times near_scale; writes row dots. Returns <dO, near field> of rows g and g + 8: the
/// gradient of the weight.
template <typename G>
__device__ __forceinline__ float near_query(NearFragments& near, NearBlocks& p, const Scores& g,
                                            uint32_t kept, const Rows<G, Sweep::kQueries>& rows) {
  constexpr int kElements = 8 * chunks::kMostGroups;
  const SweepArgs& args = rows.args;
  const float factor = args.near_scale * rows.weight(G::kMaps);
  float dot[2] = {0.f, 0.f}, by_weight = 0.f;
  NearBlocks gradient;
  rows.gather(gradient, g);
  rows.drop(gradient, kept);
#pragma unroll
  for (int i = 0; i < kElements; ++i)
    dot[i % 4 / 2] += p[i / 8][i / 4 % 2][i % 4] * gradient[i / 8][i / 4 % 2][i % 4];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    dot[r] = quad_sum(dot[r]);
    by_weight += dot[r];
    dot[r] *= factor;
  }
#pragma unroll
  for (int i = 0; i < kElements; ++i)
    p[i / 8][i / 4 % 2][i % 4] *= factor * gradient[i / 8][i / 4 % 2][i % 4] - dot[i % 4 / 2];
#pragma unroll
  for (int k = 0; k < chunks::kMostGroups; ++k) near[k] = rounded(p[k]);
  if (!args.has_near) return 0.f;
  float* dots = args.row_dots + rows.row_index(args, G::kFields, G::kMaps);
  rows.each_row_once([&](int r, int token) { dots[token] = dot[r]; });
  return by_weight;
}

/// dot += sum over the chunk of g s, up to the diagonal.
template <typename G>
__device__ __forceinline__ void add_chunk_dot(float (&dot)[2], const Block (&g)[kTiles],
                                              Block (&s)[kTiles],
                                              const Rows<G, Sweep::kQueries>& rows) {
  rows.cut(s);
#pragma unroll
  for (int i = 0; i < 8 * kTiles; ++i)
    dot[i % 4 / 2] += g[i / 8][i / 4 % 2][i % 4] * s[i / 8][i / 4 % 2][i % 4];
}
/// dot += <f, u>, for a block of channels.
__device__ __forceinline__ void add_dot(float (&dot)[2], const Fragment& f, const Block& u) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float low, high;
    Bf16::unpack(f.r[j], low, high);
    dot[j % 2] += low * u[j / 2][j % 2 * 2] + high * u[j / 2][j % 2 * 2 + 1];
  }
}

/// From <f, u> of a map's rows: the factors of their gradients, and dots as the key sweep and the
/// rest of this one want them; writes row dots. Returns <dO, far field>.
template <typename G>
__device__ __forceinline__ float finish_dots(float (&dot)[2], float (&factor)[2],
                                             const Rows<G, Sweep::kQueries>& rows, int map) {
  const SweepArgs& args = rows.args;
  float by_weight = 0.f, norm[2] = {args.fixed_norm, args.fixed_norm};
  if (chunks::has_row_sums(args)) rows.row_numbers(norm, chunks::kNorm<G> + map);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    dot[r] = quad_sum(dot[r]);
    const float inverse = rows.is_live(r) ? __fdividef(1.f, norm[r]) : 0.f;
    by_weight += args.far_scale * inverse * dot[r];
    factor[r] = args.far_scale * inverse * rows.weight(map);
    dot[r] = chunks::has_row_sums(args) ? dot[r] * inverse : 0.f;
  }
  float* dots = args.row_dots + rows.row_index(args, G::kFields, map);
  rows.each_row_once([&](int r, int token) { dots[token] = dot[r]; });
  return by_weight;
}

/// m = g - dot up to the diagonal.
template <typename G>
__device__ __forceinline__ void make_differences(Fragment (&m)[kTiles], const Block (&g)[kTiles],
                                                 const float (&dot)[2],
                                                 const Rows<G, Sweep::kQueries>& rows) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    Block difference;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      difference[i / 4][i % 4] =
          rows.far_bits >> (8 * t + i) & 1 ? g[t][i / 4][i % 4] - dot[i % 4 / 2] : 0.f;
    m[t] = rounded(difference);
  }
}
/// u += the rest of a map's gradient with respect to f: m f(k), and -dot times the key sums before
/// the chunk.
template <typename G>
__device__ __forceinline__ void add_chunk_gradient(Block (&u)[G::kBlocks],
                                                   const Fragment (&m)[kTiles],
                                                   const float (&dot)[2],
                                                   const Rows<G, Sweep::kQueries>&, int map) {
  using M = Memory<G, Sweep::kQueries>;
  const float* sums = shared_at<float>(M::kKeySums) + map * G::kDim + lane_id() % 4 * 2;
#pragma unroll
  for (int n = 0; n < 2 * G::kBlocks; ++n) {
    const float2 z = *reinterpret_cast<const float2*>(sums + n * 8);
    float(&c)[4] = u[n / 2][n % 2];
    c[0] -= dot[0] * z.x, c[1] -= dot[0] * z.y, c[2] -= dot[1] * z.x, c[3] -= dot[1] * z.y;
  }
  begin_warpgroup_products();
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
    product<Turned::kYes>(u, m[t], columns_operand(M::kFeatures + map * G::kTile, t), true);
  commit_products();
  wait_for_products<0>();
  arrived(u);
}

/// u becomes one map's part of dq; `dot`: <f, gradient> of the chunk so far. Returns
/// <dO, far field>.
template <typename G, int kMap>
__device__ __forceinline__ float far_query(Block (&u)[G::kBlocks], float (&dot)[2],
                                           const Block (&g)[kTiles],
                                           const Rows<G, Sweep::kQueries>& rows) {
  using M = Memory<G, Sweep::kQueries>;
  float factor[2];
  begin_warpgroup_products();
#pragma unroll
  for (int s = 0; s < G::kBlocks; ++s)
    product<Turned::kNo, Turned::kYes>(
        u, rows_operand(rows.own(1), s),
        state_columns_operand<G>(M::kState + kMap * G::kStateOfMap, s), s > 0);
  commit_products();
  wait_for_products<0>();
  arrived(u);
  if (kMap + 1 == G::kMaps) rows.events.say(kSecondEmpty);
#pragma unroll
  for (int b = 0; b < G::kBlocks; ++b) add_dot(dot, rows.template features<kMap>(b), u[b]);
  const float by_weight = finish_dots(dot, factor, rows, kMap);
  Fragment m[kTiles];
  make_differences(m, g, dot, rows);
  add_chunk_gradient(u, m, dot, rows, kMap);
  if (kMap + 1 == G::kMaps) rows.events.say(kFeaturesEmpty);
#pragma unroll
  for (int b = 0; b < G::kBlocks; ++b)
    to_input_gradient<kMap>(u[b], rows.template features<kMap>(b), factor);
  return by_weight;
}

/// One chunk. `by_weight`: sums for the gradients of weights.
template <typename G>
__device__ __forceinline__ void query_rows(const Rows<G, Sweep::kQueries>& rows,
                                           const typename Rows<G, Sweep::kQueries>::Band& band,
                                           float (&by_weight)[G::kFields]) {
  using M = Memory<G, Sweep::kQueries>;
  const SweepArgs& args = rows.args;
  const auto& events = rows.events;
  NearFragments near;
  float dot[G::kMaps][2];
  Scores g;
  {
    NearBlocks p;
    const uint32_t kept = probabilities_and_gradients(p, g, rows, band);
    by_weight[G::kMaps] += near_query(near, p, g, kept, rows);
  }
  events.await(kFeaturesFull, rows.step);
  events.await(kOwnFull, rows.step);
  each_map<G>([&](auto map) {
    constexpr int kMap = decltype(map)::value;
    Fragment f[G::kBlocks];
    Block s[kTiles];
#pragma unroll
    for (int b = 0; b < G::kBlocks; ++b) f[b] = rows.template features<kMap>(b);
    begin_warpgroup_products();
#pragma unroll
    for (int b = 0; b < G::kBlocks; ++b)
      product<Turned::kNo>(s, f[b], rows_operand(M::kFeatures + kMap * G::kTile, b), b > 0);
    commit_products();
    dot[kMap][0] = dot[kMap][1] = 0.f;
    wait_for_products<0>();
    arrived(s);
    add_chunk_dot(dot[kMap], g.main, s, rows);
  });
  events.await(kStateFull, rows.step);
  Block dq[G::kBlocks];
  by_weight[0] += far_query<G, 0>(dq, dot[0], g.main, rows);
  {
    Fragment operands[kTiles + chunks::kHalo];
    rows.begin_near_sum(dq, operands, near, 0, /*add=*/true);
    wait_for_products<0>();
    arrived(dq);
  }
  events.say(kHaloEmpty);
  if constexpr (G::kMaps > 1) {
    rows.put_aside(dq);
    by_weight[1] += far_query<G, 1>(dq, dot[1], g.main, rows);
    rows.add_aside(dq);
  }
  events.say(kStateEmpty);
  rows.write(args.dq, dq, rows.own(0));
}

/// Gradients of blend weights, from a sum of rows g and g + 8 a lane and field, into the first
/// channel's place in args.weight_sums; the others become zeros.
template <typename G>
__device__ void store_weight_sums(const float (&by_field)[G::kFields],
                                  const Rows<G, Sweep::kQueries>& rows) {
  const SweepArgs& args = rows.args;
  float* all = shared_at<float>(Memory<G, Sweep::kQueries>::kKeySums);  // [tiles][fields]
  named_barrier(2, kGroupThreads);  // nobody needs the key sums any more
#pragma unroll
  for (int field = 0; field < G::kFields; ++field) {
    float sum = by_field[field];
#pragma unroll
    for (int other = 4; other < kWarpSize; other *= 2) sum += __shfl_xor_sync(~0u, sum, other);
    if (lane_id() == 0) all[rows.tile * G::kFields + field] = sum;
  }
  named_barrier(2, kGroupThreads);
  const int dim = channels<G>(args.head_dim);
  for (int i = threadIdx.x % kGroupThreads; i < G::kFields * dim; i += kGroupThreads) {
    const int field = i / dim, channel = i % dim;
    if (field == G::kMaps && !args.has_near) continue;
    float sum = 0.f;
    for (int tile = 0; channel == 0 && tile < kTiles; ++tile) sum += all[tile * G::kFields + field];
    const auto& place = Place<G, Sweep::kQueries>::numbers();
    const int64_t entry = int64_t(place.pair) * args.segments + place.segment;
    args.weight_sums[(entry * G::kFields + field) * dim + channel] = sum;
  }
}

/// Lets the keys' sweep begin, which reads row dots.
template <typename G>
__device__ __forceinline__ void finish_queries(const Rows<G, Sweep::kQueries>& rows) {
  __threadfence();
  named_barrier(2, kGroupThreads);
  if (threadIdx.x % kGroupThreads == 0)
    say_progress(rows.args.progress + Place<G, Sweep::kQueries>::numbers().pair, 1);
}

}  // namespace fmmformer::cuda::warpgroups
