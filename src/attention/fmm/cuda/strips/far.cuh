// SPDX-License-Identifier: Apache-2.0
// The far fields of sixteen tokens, map by map. The formulas are those of docs/math.md; results
// with v's channels come without the blend weight until add_field.
#pragma once

#include "attention/fmm/cuda/features.cuh"
#include "attention/fmm/cuda/strips/near.cuh"
#include "attention/fmm/cuda/strips/sums.cuh"

namespace fmmformer::cuda::strips {

/// What a far field's functions know besides tiles and states.
template <typename G>
struct FarStep {
  const SweepArgs& args;
  Weights<G> weights;
  int tile = 0;
  uint32_t live = 0;  // bits of the tile's tokens
  int map = 0;        // of a team's warp

  __device__ bool row_sums() const { return args.normaliser == Normaliser::kRowSum; }
  /// far_scale / norm of rows g and g + 8; 0 for dead ones. `norms`: [16].
  __device__ __forceinline__ void factors(const float* norms, float (&norm)[2],
                                          float (&factor)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) norm[r] = row_sums() ? norms[row_of(2 * r)] : args.fixed_norm;
    factors(norm, factor);
  }
  __device__ __forceinline__ void factors(const float (&norm)[2], float (&factor)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      factor[r] = live >> row_of(2 * r) & 1 ? __fdividef(args.far_scale, norm[r]) : 0.f;
  }
};

/// Where a map is among those that a warp sees to: a team's warp has one.
template <typename G>
__device__ __forceinline__ constexpr int own_index(int map) {
  return G::kTeam ? 0 : map;
}
/// body(map) for these maps.
template <typename G, typename Body>
__device__ __forceinline__ void each_map(const FarStep<G>& step, const Body& body) {
  if constexpr (G::kTeam) {
    body(step.map);
  } else {
    body(MapIndex<0>());
    if constexpr (G::kMaps > 1) body(MapIndex<1>());
    if constexpr (G::kMaps > 2) body(MapIndex<2>());
  }
}
/// The same for maps of which the warp keeps no state: in fp32, one piece of code for all. It is
/// half of a loop that is longer than what multiprocessors hold of instructions.
template <typename G, typename Body>
__device__ __forceinline__ void each_map_alone(const FarStep<G>& step, const Body& body) {
  if constexpr (G::kWide) {
#pragma unroll 1
    for (int map = 0; map < G::kMaps; ++map) body(map);
  } else {
    each_map(step, body);
  }
}
template <typename G>
using ForwardStates = FarStates<G, /*kKeysAreRows=*/false>;
template <typename G>
using QueryStates = FarStates<G, /*kKeysAreRows=*/true>;
template <typename G>
using KeyStates = FarStates<G, /*kKeysAreRows=*/false>;

/// Adds sixteen keys to the states.
template <typename G, bool kKeysAreRows>
__device__ __forceinline__ void add_keys(const FarStep<G>& step, const ElemOf<G>* k_tile,
                                         const ElemOf<G>* v_tile,
                                         FarStates<G, kKeysAreRows>& states) {
  if ((step.live & 0xffffu) == 0) return;
  const Inputs<G> k(k_tile);
  Fragments<G> values;
  load_turned<G>(values, v_tile);
  each_map(step, [&](auto map) {
    const int l = index_of(map);
    Fragments<G> f, turned_f;
    k.features(map, f);
    keep_live(f, step.live);
    turn(turned_f, f);
    states[own_index<G>(l)].add(turned_f, values);
    add_rows<G>(states[own_index<G>(l)].key_sums, turned_f);
  });
}

/// norms of rows g and g + 8 from row sums; written to `normalisers`, [maps][length].
template <typename G>
__device__ __forceinline__ void finish_norms(const FarStep<G>& step, int map,
                                             const RowSums<G>& row_sums, float* normalisers,
                                             float (&factor)[2]) {
  const SweepArgs& args = step.args;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float norm = step.row_sums() ? row_sums.of(r) + args.eps : args.fixed_norm;
    const int token = step.tile * kBlockDim + row_of(2 * r);
    if (step.row_sums() && lane_id() % 4 == 0 && token < args.length)
      normalisers[int64_t(map) * args.length + token] = norm;
    factor[r] = __fdividef(args.far_scale, norm);
  }
}

/// out += weight * far field of the tile's queries, and its keys join the states.
template <typename G>
__device__ __forceinline__ void far_forward(const FarStep<G>& step, const ElemOf<G>* q_tile,
                                            const ElemOf<G>* k_tile, const ElemOf<G>* v_tile,
                                            ForwardStates<G>& states, const KeySums<G>& key_sums,
                                            float* normalisers, Blocks<G>& out) {
  const Inputs<G> q(q_tile);
  const Inputs<G, Side::kRight> k(k_tile);
  Fragments<G> values;
  load_turned<G>(values, v_tile);
  each_map(step, [&](auto map) {
    const int l = index_of(map);
    auto& state = states[own_index<G>(l)];
    Fragments<G> f, x;
    q.features(map, f);
    k.features(map, x);
    keep_live(x, step.live);
    Block a;
    multiply(a, f, x);
    typename G::Fragment inner = operand<G>(a);
    cut_at_diagonal</*kBefore=*/false>(inner);
    float factor[2], z[G::kBlocks][4];
    key_sums.load(l, z);
    RowSums<G> row_sums;
    if (step.row_sums()) {
#pragma unroll
      for (int s = 0; s < G::kBlocks; ++s) row_sums.add(f[s], z[s]);
      row_sums.add(inner);
    }
    Blocks<G> sum;
    clear(sum);
#pragma unroll
    for (int b = 0; b < G::kBlocks; ++b) {
#pragma unroll
      for (int s = 0; s < G::kBlocks; ++s) add_product(sum[b], f[s], operand<G>(state.sums[b][s]));
      add_product(sum[b], inner, values[b]);
    }
    finish_norms(step, l, row_sums, normalisers, factor);
    add_field<G>(out, sum, factor, step.weights, l);
    Fragments<G> turned_x;
    turn(turned_x, x);
    state.add(turned_x, values);
    add_rows<G>(z, turned_x);
    key_sums.store(l, z);
  });
}
/// The same, two-sided.
template <typename G>
__device__ __forceinline__ void far_forward(const FarStep<G>& step, const ElemOf<G>* q_tile,
                                            const FixedSums<G>& fixed, float* normalisers,
                                            Blocks<G>& out) {
  const Inputs<G> q(q_tile);
  each_map_alone(step, [&](auto map) {
    const int l = index_of(map);
    Fragments<G> f;
    q.features(map, f);
    float factor[2];
    RowSums<G> row_sums;
    if (step.row_sums()) {
      float key_sums[G::kBlocks][4];
      fixed.key_sums.load(l, key_sums);
#pragma unroll
      for (int s = 0; s < G::kBlocks; ++s) row_sums.add(f[s], key_sums[s]);
    }
    Blocks<G> sum;
    clear(sum);
#pragma unroll
    for (int i = 0; i < G::kBlocks * G::kBlocks; ++i) {
      const int b = i / G::kBlocks, s = i % G::kBlocks;
      add_product(sum[b], f[s], fixed.block(l, b, s));
    }
    finish_norms(step, l, row_sums, normalisers, factor);
    add_field<G>(out, sum, factor, step.weights, l);
  });
}

}  // namespace fmmformer::cuda::strips
