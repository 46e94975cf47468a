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

// Of kRowsTogether rows and one map: dot_i = <F_i, U_i> / norm_i, kept for the keys' side as far as
// the normaliser's gradient flows, and added to the weight's gradient.
template <typename Real>
HWY_INLINE void dots_of_queries(const SweepArgs<Real>& args, const Rows& rows, int64_t begin,
                                int map, const hn::Vec<hn::ScalableTag<Real>>* products,
                                const Real* normalisers, Real* through, double* weight_sum) {
  sums_of_lanes(hn::ScalableTag<Real>(), products, through);
  for (int64_t i = 0; i < kRowsTogether; ++i) through[i] /= normalisers[i];
  if (!rows.all_live(begin, kRowsTogether)) {
    for (int64_t i = 0; i < kRowsTogether; ++i) {
      if (!rows.live(begin + i)) through[i] = Real(0);
    }
  }
  double sum = 0;
  for (int64_t i = 0; i < kRowsTogether; ++i) sum += static_cast<double>(through[i]);
  *weight_sum += sum * static_cast<double>(args.far_scale);
  if (!every_normaliser_has_gradient(args, map)) {
    for (int64_t i = 0; i < kRowsTogether; ++i) {
      if (!normaliser_has_gradient(args, map, normalisers[i])) through[i] = Real(0);
    }
  }
  copy_existing_rows(args, begin, through, dots_of(args, rows, map) + begin);
}

/// Row by row: dots, and U turned into the gradient of the query features, factor * (U - dot * sum
/// of the keys). Causal, key_sums are those before the chunk, and on return those after it.
template <typename Real>
HWY_NOINLINE void gradient_of_query_features(const SweepArgs<Real>& args, const Rows& rows,
                                             int64_t begin, int64_t count, QueryTiles<Real>& tiles,
                                             NextRows& next, Real* key_sums, double* weight_sums) {
  const hn::ScalableTag<Real> d;
  const int64_t width = padded(args.head_dim), features = feature_width(args);
  hn::Vec<decltype(d)> products[kRowsTogether];
  Real normalisers[kRowsTogether];
  Real factors[kMaxFeatureMaps][kRowsTogether], through[kMaxFeatureMaps][kRowsTogether];
  for (int64_t first = 0; first < count; first += kRowsTogether) {
    for (int l = 0; l < args.maps; ++l) {
      for (int64_t i = 0; i < kRowsTogether; ++i) {
        const int64_t at = (first + i) * features + l * width;
        products[i] = products_of_rows(width, tiles.q_features.values + at, tiles.gradient + at);
      }
      kept_normalisers(args, rows, begin + first, l, normalisers);
      query_factors(args, rows, begin + first, l, normalisers, factors[l]);
      dots_of_queries(args, rows, begin + first, l, products, normalisers, through[l],
                      weight_sums + l);
    }
    for (int64_t i = 0; i < kRowsTogether; ++i) {
      next.ask();
      const int64_t row = (first + i) * features;
      if (args.causal) add_row(features, tiles.k_features.values + row, key_sums);
      for (int l = 0; l < args.maps; ++l) {
        const auto factor = hn::Set(d, factors[l][i]), dot = hn::Set(d, through[l][i]);
        Real* gradient = tiles.gradient + row + l * width;
        const Real* keys = key_sums + l * width;
        for (int64_t c = 0; c < width; c += hn::Lanes(d)) {
          const auto centred = hn::NegMulAdd(dot, hn::Load(d, keys + c), hn::Load(d, gradient + c));
          hn::Store(hn::Mul(factor, centred), d, gradient + c);
        }
      }
    }
  }
}

/// `after` = `before`, which is S transposed, and the keys [first, first + count) of the chunk.
/// Both may be the same.
template <typename Real>
HWY_INLINE void add_keys_transposed(const SweepArgs<Real>& args, int64_t first, int64_t count,
                                    const Real* k_features, const Real* v, const Real* before,
                                    Real* after) {
  const int64_t features = feature_width(args), value_width = padded(args.value_dim);
  product_onto(
      before, value_width, features, count, left_transposed(v + first * value_width, value_width),
      RowTile<const Real>{k_features + first * features, features}, RowTile<Real>{after, features});
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

/// The near field's part of the weights' gradients, from the first `count` dots.
template <typename Real>
HWY_INLINE void add_near_dots(const SweepArgs<Real>& args, int64_t count,
                              const QueryTiles<Real>& tiles, double* weight_sums) {
  for (int64_t i = 0; i < count; ++i)
    weight_sums[args.maps] += static_cast<double>(tiles.near_dots[i]);
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
