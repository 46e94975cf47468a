// SPDX-License-Identifier: Apache-2.0
// The queries' side of the gradients, for a chunk: what the sweeps of backward share.
#if defined(FMMFORMER_BACKWARD_QUERIES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FMMFORMER_BACKWARD_QUERIES_INL_H_
#undef FMMFORMER_BACKWARD_QUERIES_INL_H_
#else
#define FMMFORMER_BACKWARD_QUERIES_INL_H_
#endif

#include <algorithm>

#include "attention/fmm/cpu/far_field-inl.h"
#include "attention/fmm/cpu/near_backward-inl.h"
#include "attention/fmm/cpu/sweep.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename Real>
struct QueryTiles {
  Real *q, *own_k, *own_v, *grad, *group_grad, *dq;  // [kChunk, padded D or Dv]
  const Real *k, *v;                         // own_k and own_v, or part of the near field's block
  FeatureTile<Real> q_features, k_features;  // [kChunk, R]
  Real* gradient;                            // [kChunk, R]: U, then that of the features
  Real* own_v_t;                             // [padded Dv, kChunk]
  RowTile<const Real> v_t;                   // the same, or part of the near field's block
  Real* weight_grads;  // [kChunk, kChunk]: <dO_i, v_j>, j from a step's first key on
  Real* sums_t;        // [padded Dv, R]: S transposed
  Real near_dots[kChunk];

  QueryTiles(const SweepArgs<Real>& args, Arena& arena)
      : q_features(args, arena), k_features(args, arena) {
    const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim);
    const int64_t features = feature_width(args);
    for (Real** tile : {&q, &own_k, &dq}) *tile = arena.take<Real>(kChunk * width);
    for (Real** tile : {&own_v, &grad, &group_grad}) *tile = arena.take<Real>(kChunk * value_width);
    gradient = arena.take<Real>(kChunk * features);
    own_v_t = arena.take<Real>(value_width * kChunk);
    weight_grads = arena.take<Real>(kChunk * kChunk);
    sums_t = arena.take<Real>(value_width * features);
  }
};

/// U_i = sum_j <dO_i, v_j> Fk_j over the keys in reach, for the queries [first, first + count) of
/// the chunk. What <dO_i, v_j> it makes stays in weight_grads.
template <typename Real>
HWY_NOINLINE void sum_key_features(const SweepArgs<Real>& args, const Rows& rows, int64_t first,
                                   int64_t count, bool keys_before, QueryTiles<Real>& tiles) {
  const int64_t features = feature_width(args), value_width = padded(args.value_dim);
  const Real* keys = tiles.k_features.values + first * features;
  for (int g = 0; g < group_count(args); ++g) {
    const MapGroup<Real> group = group_of(args, rows.head, g);
    const Real* grad = tiles.grad + first * value_width;
    if (group.weight != nullptr) {
      weigh_rows(count, args.value_dim, group.weight, grad, tiles.group_grad);
      grad = tiles.group_grad;
    }
    const RowTile<Real> result{tiles.gradient + first * features + group.begin, features};
    Real* weight_grads = tiles.weight_grads + first * kChunk;
    Into into = Into::kOverwrite;
    if (args.causal) {
      product_lower(count, value_width, left_rows(grad, value_width),
                    RowTile<const Real>{tiles.v_t.data + first, tiles.v_t.row_stride},
                    RowTile<Real>{weight_grads, kChunk});
      lower_times<Real>(count, group.width, weight_grads, kChunk, {keys + group.begin, features},
                        result, into);
      into = Into::kAdd;
    }
    if (keys_before) {
      product(count, group.width, value_width, left_rows(grad, value_width),
              RowTile<const Real>{tiles.sums_t + group.begin, features}, result, into);
    }
  }
}

/// Row by row: dots, and U turned into the gradient of the query features, factor * (U - dot * sum
/// of the keys). Causal, key_sums are those before the chunk, and on return those after it.
template <typename Real>
HWY_NOINLINE void gradient_of_query_features(const SweepArgs<Real>& args, const Rows& rows,
                                             int64_t begin, int64_t count, QueryTiles<Real>& tiles,
                                             NextRows& next, Real* key_sums, double* weight_sums) {
  const hn::ScalableTag<Real> d;
  const int64_t width = padded(args.head_dim), features = feature_width(args);
  for (int64_t i = 0; i < count; ++i) {
    next.ask();
    if (args.causal) add_row(features, tiles.k_features.values + i * features, key_sums);
    const Real* query = tiles.q_features.values + i * features;
    Real* gradient = tiles.gradient + i * features;
    for (int l = 0; l < args.maps; ++l, query += width, gradient += width) {
      Real factor = 0, dot = 0, through = 0;
      if (rows.live(begin + i)) {
        const Real norm = has_row_sums(args) ? normalisers_of(args, rows, l)[begin + i]
                                             : constant_normaliser(args);
        dot = dot_of_rows(width, query, gradient) / norm;
        factor = query_factor(args, rows.head, l, norm);
        through = normaliser_has_gradient(args, l, norm) ? dot : Real(0);
        weight_sums[l] += static_cast<double>(dot * args.far_scale);
      }
      if (begin + i < args.length) dots_of(args, rows, l)[begin + i] = through;
      const auto factors = hn::Set(d, factor), dots = hn::Set(d, through);
      const Real* keys = key_sums + l * width;
      for (int64_t c = 0; c < width; c += hn::Lanes(d)) {
        const auto centred = hn::NegMulAdd(dots, hn::Load(d, keys + c), hn::Load(d, gradient + c));
        hn::Store(hn::Mul(factors, centred), d, gradient + c);
      }
    }
  }
}

/// The keys [first, first + count) of the chunk join `sums_t`, which is S transposed.
template <typename Real>
HWY_INLINE void add_keys_transposed(const SweepArgs<Real>& args, int64_t first, int64_t count,
                                    const Real* k_features, const Real* v, Real* sums_t) {
  const int64_t features = feature_width(args), value_width = padded(args.value_dim);
  product(value_width, features, count, left_transposed(v + first * value_width, value_width),
          RowTile<const Real>{k_features + first * features, features},
          RowTile<Real>{sums_t, features}, Into::kAdd);
}

/// The queries [begin, begin + count) in tiles.q and tiles.grad: the near field's part of all
/// gradients, or (`dq` none) of those of the keys alone.
template <typename Real, typename Keys>
HWY_INLINE void near_part_of_queries(const SweepArgs<Real>& args, const Rows& rows, int64_t begin,
                                     int64_t count, Real* dq, QueryTiles<Real>& tiles,
                                     NearScratch<Real>& near, Keys& keys) {
  const Real* weight = args.near_weight + rows.head * args.value_dim;
  NearQueries<Real> queries{.rows = rows,
                            .begin = begin,
                            .count = count,
                            .q = tiles.q,
                            .grad = tiles.grad,
                            .weighted_grad = tiles.grad,
                            .weight = weight[0],
                            .dots = tiles.near_dots,
                            .dq = dq};
  if (!args.uniform_weights) {
    weigh_rows(count, args.value_dim, weight, tiles.grad, tiles.group_grad);
    queries.weighted_grad = tiles.group_grad, queries.weight = Real(1);
  }
  near_backward(args, queries, near, keys);
}

/// The chunk's keys, for the far field: from the near field's block where that has them.
template <typename Real>
HWY_INLINE void find_keys(const SweepArgs<Real>& args, const Rows& rows, int64_t begin,
                          int64_t count, const NearScratch<Real>& near, QueryTiles<Real>& tiles) {
  const int64_t value_width = padded(args.value_dim);
  if (near.holds_band) {
    const int64_t offset = begin - near.block.begin;
    tiles.k = near.block.k + offset * padded(args.head_dim);
    tiles.v = near.block.v + offset * value_width;
    tiles.v_t = {near.block.v_t + offset, kNearStride};
    return;
  }
  load_rows(args.element, args.k, rows, begin, count, args.head_dim, tiles.own_k);
  load_rows(args.element, args.v, rows, begin, count, args.value_dim, tiles.own_v);
  transpose(count, value_width, tiles.own_v, value_width, tiles.own_v_t, kChunk);
  tiles.k = tiles.own_k, tiles.v = tiles.own_v, tiles.v_t = {tiles.own_v_t, kChunk};
}

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FMMFORMER_BACKWARD_QUERIES_INL_H_
