// SPDX-License-Identifier: Apache-2.0
// The keys' side of the gradients, for a chunk: what the sweeps of backward share.
#if defined(FMMFORMER_BACKWARD_KEYS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FMMFORMER_BACKWARD_KEYS_INL_H_
#undef FMMFORMER_BACKWARD_KEYS_INL_H_
#else
#define FMMFORMER_BACKWARD_KEYS_INL_H_
#endif

#include <algorithm>

#include "attention/fmm/cpu/far_field-inl.h"
#include "attention/fmm/cpu/sweep.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename Real>
struct KeyTiles {
  Real *group_v, *dk, *dv, *group_dv;        // [kChunk, padded D or Dv]
  const Real *k, *v, *grad;                  // the same; of whoever loads them
  FeatureTile<Real> q_features, k_features;  // [kChunk, R]; q_features scaled by query_factor
  Real* gradient;                            // [kChunk, R], of the key features
  Real* k_features_t;                        // [R, kChunk]
  Real* v_t;                                 // [padded Dv, kChunk]
  Real *weights, *weight_grads;              // [kChunk, kChunk]: <Fq_i, Fk_j> and <dO_i, v_j>
  bool has_weight_grads = false;             // weight_grads are there already
  Real* sums_t;                              // [padded Dv, R]: G transposed

  KeyTiles(const SweepArgs<Real>& args, Arena& arena)
      : q_features(args, arena), k_features(args, arena) {
    const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim);
    const int64_t features = feature_width(args);
    dk = arena.take<Real>(kChunk * width);
    for (Real** tile : {&group_v, &dv, &group_dv}) *tile = arena.take<Real>(kChunk * value_width);
    for (Real** tile : {&gradient, &k_features_t}) *tile = arena.take<Real>(kChunk * features);
    for (Real** tile : {&weights, &weight_grads}) *tile = arena.take<Real>(kChunk * kChunk);
    v_t = arena.take<Real>(value_width * kChunk);
    sums_t = arena.take<Real>(value_width * features);
  }
};

// dv += weight * part, and the weight's gradient, sum_j v_j * part_j, channel by channel.
template <typename Real>
HWY_INLINE void add_weighted_values(int64_t count, int64_t value_dim, const Real* weight,
                                    const Real* v, const Real* part, Real* dv,
                                    double* weight_sums) {
  const int64_t stride = padded(value_dim);
  for (int64_t j = 0; j < count; ++j) {
    for (int64_t e = 0; e < value_dim; ++e) {
      dv[j * stride + e] += weight[e] * part[j * stride + e];
      weight_sums[e] += static_cast<double>(v[j * stride + e] * part[j * stride + e]);
    }
  }
}

// dv_j = sum_i <Fq_i, Fk_j> dO_i and (without the normaliser's part) dFk_j = sum_i <dO_i, v_j>
// Fq_i, for one group and the keys [first, first + count) of the chunk.
template <typename Real>
HWY_INLINE void group_gradients(const SweepArgs<Real>& args, int64_t first, int64_t count,
                                bool queries_after, const MapGroup<Real>& group,
                                KeyTiles<Real>& tiles, FarState<Real> query_sums, Real* dv) {
  const int64_t features = feature_width(args), value_width = padded(args.value_dim);
  const int64_t at = first * features + group.begin;
  const RowTile<Real> values{dv, value_width}, gradient{tiles.gradient + at, features};
  const Real *v = tiles.v + first * value_width, *grad = tiles.grad + first * value_width;
  if (group.weight != nullptr) {
    weigh_rows(count, args.value_dim, group.weight, v, tiles.group_v);
    v = tiles.group_v;
  }
  Into into = Into::kOverwrite;
  if (args.causal) {
    const Real* queries = tiles.q_features.values + at;
    product_lower(count, group.width, left_rows(queries, features),
                  RowTile<const Real>{tiles.k_features_t + group.begin * kChunk + first, kChunk},
                  RowTile<Real>{tiles.weights, kChunk});
    lower_transposed_times<Real>(count, value_width, tiles.weights, kChunk, {grad, value_width},
                                 values, into);
    Real* weight_grads = tiles.weight_grads + first * kChunk;
    if (!tiles.has_weight_grads) {
      transpose(count, value_width, v, value_width, tiles.v_t, kChunk);
      product_lower(count, value_width, left_rows(grad, value_width),
                    RowTile<const Real>{tiles.v_t, kChunk}, RowTile<Real>{weight_grads, kChunk});
    }
    lower_transposed_times<Real>(count, group.width, weight_grads, kChunk, {queries, features},
                                 gradient, into);
    into = Into::kAdd;
  }
  if (queries_after) {
    product(count, value_width, group.width,
            left_rows<Real>(tiles.k_features.values + at, features),
            RowTile<const Real>{query_sums.sums + group.begin * value_width, value_width}, values,
            into);
    product(count, group.width, value_width, left_rows(v, value_width),
            RowTile<const Real>{tiles.sums_t + group.begin, features}, gradient, into);
  }
}

/// All groups of the keys [first, first + count) of the chunk; causal, their queries then join G.
template <typename Real>
HWY_INLINE void far_step_of_keys(const SweepArgs<Real>& args, const Rows& rows, int64_t first,
                                 int64_t count, bool queries_after, KeyTiles<Real>& tiles,
                                 FarState<Real> query_sums, double* weight_sums) {
  const int64_t features = feature_width(args), value_width = padded(args.value_dim);
  if (args.causal && queries_after)
    transpose(features, value_width, query_sums.sums, value_width, tiles.sums_t, features);
  Real* dv = tiles.dv + first * value_width;
  for (int g = 0; g < group_count(args); ++g) {
    const MapGroup<Real> group = group_of(args, rows.head, g);
    group_gradients(args, first, count, queries_after, group, tiles, query_sums,
                    group.weight == nullptr ? dv : tiles.group_dv);
    if (group.weight != nullptr) {
      add_weighted_values(count, args.value_dim, group.weight, tiles.v + first * value_width,
                          tiles.group_dv, dv, weight_sums + g * value_width);
    }
  }
  if (args.causal) {
    product(features, value_width, count,
            left_transposed<Real>(tiles.q_features.values + first * features, features),
            RowTile<const Real>{tiles.grad + first * value_width, value_width},
            RowTile<Real>{query_sums.sums, value_width}, Into::kAdd);
  }
}

/// dFk_j -= sum_i dot_i Fq_i over the queries that reach j: the normaliser's part, row by row from
/// the end.
template <typename Real>
HWY_NOINLINE void subtract_normaliser_part(const SweepArgs<Real>& args, const Rows& rows,
                                           int64_t begin, int64_t count, KeyTiles<Real>& tiles,
                                           NextRows& next, Real* dot_sums) {
  const int64_t width = padded(args.head_dim), features = feature_width(args);
  for (int64_t j = count - 1; j >= 0; --j) {
    next.ask();
    for (int l = 0; l < args.maps; ++l) {
      const int64_t at = j * features + l * width;
      if (args.causal && begin + j < args.length) {
        add_scaled_row(width, dots_of(args, rows, l)[begin + j], tiles.q_features.values + at,
                       dot_sums + l * width);
      }
      add_scaled_row(width, Real(-1), dot_sums + l * width, tiles.gradient + at);
    }
  }
}

/// dk and dv of the chunk's keys, plus the near field's part of them (dv's without the weight).
template <typename Real>
HWY_INLINE void add_near_part(const SweepArgs<Real>& args, const Rows& rows, int64_t count,
                              const Real* near_dk, const Real* near_dv, KeyTiles<Real>& tiles,
                              double* weight_sums) {
  const Real* weight = args.near_weight + rows.head * args.value_dim;
  add_row(count * padded(args.head_dim), near_dk, tiles.dk);
  if (args.uniform_weights) {
    add_scaled_row(count * padded(args.value_dim), weight[0], near_dv, tiles.dv);
  } else {
    add_weighted_values(count, args.value_dim, weight, tiles.v, near_dv, tiles.dv,
                        weight_sums + args.maps * padded(args.value_dim));
  }
}

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FMMFORMER_BACKWARD_KEYS_INL_H_
