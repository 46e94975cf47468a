// SPDX-License-Identifier: Apache-2.0
#include "attention/cpu/targets.h"
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/fmm/cpu/query_sweep.cpp"
#include "hwy/foreach_target.h"
// clang-format on
#include "attention/fmm/cpu/far_field-inl.h"
#include "attention/fmm/cpu/near_backward-inl.h"
#include "attention/fmm/cpu/sweep.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {

template <typename Real>
struct QueryTiles {
  Real *q, *own_k, *own_v, *grad, *group_grad, *dq;  // [kChunk, padded D or Dv]
  const Real *k, *v;                         // own_k and own_v, or part of the near field's block
  FeatureTile<Real> q_features, k_features;  // [kChunk, R]
  Real* gradient;                            // [kChunk, R]: U, then that of the features
  Real* own_v_t;                             // [padded Dv, kChunk]
  RowTile<const Real> v_t;                   // the same, or part of the near field's block
  Real* weight_grads;                        // [kChunk, kChunk]: <dO_i, v_j>
  Real* sums_t;                              // [padded Dv, R]: S transposed
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

// U_i = sum_j <dO_i, v_j> Fk_j over the keys in reach.
template <typename Real>
HWY_NOINLINE void sum_key_features(const SweepArgs<Real>& args, const Rows& rows, int64_t count,
                                   bool keys_before, QueryTiles<Real>& tiles) {
  const int64_t features = feature_width(args), value_width = padded(args.value_dim);
  for (int g = 0; g < group_count(args); ++g) {
    const MapGroup<Real> group = group_of(args, rows.head, g);
    const Real* grad = tiles.grad;
    if (group.weight != nullptr) {
      weigh_rows(count, args.value_dim, group.weight, tiles.grad, tiles.group_grad);
      grad = tiles.group_grad;
    }
    const RowTile<Real> result{tiles.gradient + group.begin, features};
    Into into = Into::kOverwrite;
    if (args.causal) {
      product_lower(count, value_width, left_rows(grad, value_width), tiles.v_t,
                    RowTile<Real>{tiles.weight_grads, kChunk});
      lower_times<Real>(count, group.width, tiles.weight_grads, kChunk,
                        {tiles.k_features.values + group.begin, features}, result, into);
      into = Into::kAdd;
    }
    if (keys_before) {
      product(count, group.width, value_width, left_rows(grad, value_width),
              RowTile<const Real>{tiles.sums_t + group.begin, features}, result, into);
    }
  }
}

// Row by row: dots, and U turned into the gradient of the query features, factor * (U - dot * sum
// of the keys).
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

// G += Fq^T dO, and the normaliser's counterpart, for whoever goes over the keys later.
template <typename Real>
void add_queries(const SweepArgs<Real>& args, const Rows& rows, int64_t begin, int64_t count,
                 QueryTiles<Real>& tiles, FarState<Real> query_sums) {
  const int64_t width = padded(args.head_dim), features = feature_width(args),
                value_width = padded(args.value_dim);
  scale_queries(args, rows, begin, count, tiles.q_features.values, tiles.q_features.values);
  product(features, value_width, count, left_transposed<Real>(tiles.q_features.values, features),
          RowTile<const Real>{tiles.grad, value_width}, RowTile<Real>{query_sums.sums, value_width},
          Into::kAdd);
  for (int64_t i = 0; i < count && begin + i < args.length; ++i) {
    for (int l = 0; l < args.maps; ++l) {
      add_scaled_row(width, dots_of(args, rows, l)[begin + i],
                     tiles.q_features.values + i * features + l * width,
                     query_sums.key_sums + l * width);
    }
  }
}

template <typename Real>
HWY_NOINLINE void far_backward_queries(const SweepArgs<Real>& args, const Rows& rows, int64_t begin,
                                       int64_t count, bool keys_before, NextRows& next,
                                       QueryTiles<Real>& tiles, FarState<Real> state,
                                       FarState<Real> query_sums, double* weight_sums) {
  const int64_t features = feature_width(args), value_width = padded(args.value_dim);
  feature_rows(args, rows, begin, count, tiles.q, next, tiles.q_features);
  if (args.causal) {
    feature_rows(args, rows, begin, count, tiles.k, next, tiles.k_features);
  }
  sum_key_features(args, rows, count, keys_before, tiles);
  gradient_of_query_features(args, rows, begin, count, tiles, next, state.key_sums, weight_sums);
  feature_rows_backward(args, count, tiles.q, tiles.q_features, tiles.gradient, tiles.dq);
  if (args.causal) {
    product(value_width, features, count, left_transposed(tiles.v, value_width),
            RowTile<const Real>{tiles.k_features.values, features},
            RowTile<Real>{tiles.sums_t, features}, Into::kAdd);
  }
  if (query_sums.sums != nullptr) add_queries(args, rows, begin, count, tiles, query_sums);
}

// The queries [begin, begin + count) in tiles.q and tiles.grad: the near field's part of all
// gradients, or (`dq` none) of those of the keys alone.
template <typename Real>
void near_part(const SweepArgs<Real>& args, const Rows& rows, int64_t begin, int64_t count,
               Real* dq, QueryTiles<Real>& tiles, NearScratch<Real>& near, OwnedKeys& keys) {
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

// The chunk's keys, for the far field: from the near field's block where that has them.
template <typename Real>
void find_keys(const SweepArgs<Real>& args, const Rows& rows, int64_t begin, int64_t count,
               const NearScratch<Real>& near, QueryTiles<Real>& tiles) {
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

// Queries outside the segment, [begin, end), that see keys inside it.
template <typename Real>
void neighbours_part(const SweepArgs<Real>& args, const Rows& rows, int64_t begin, int64_t end,
                     QueryTiles<Real>& tiles, NearScratch<Real>& near, OwnedKeys& keys) {
  for (; begin < end; begin += kChunk) {
    const int64_t count = round_up(std::min(kChunk, end - begin), 8);
    load_rows(args.element, args.q, rows, begin, count, args.head_dim, tiles.q);
    load_rows(args.element, args.grad_out, rows, begin, count, args.value_dim, tiles.grad);
    load_band(args, rows, begin, count, /*transpose_values=*/true, near);
    near_part<Real>(args, rows, begin, count, nullptr, tiles, near, keys);
  }
}

template <typename Real>
void query_sweep_of(const SweepArgs<Real>& args, const Segment& segment, Arena& arena,
                    FarState<Real> state, FarState<Real> query_sums, double* weight_sums) {
  const Rows rows = rows_of(args, segment);
  const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim),
                features = feature_width(args);
  arena.reset();
  QueryTiles<Real> tiles(args, arena);
  NearScratch<Real> near(args, arena);
  if (args.maps > 0)
    transpose(features, value_width, state.sums, value_width, tiles.sums_t, features);
  OwnedKeys keys{segment.begin, segment.end, segment.begin};
  if (args.has_near) {
    const int64_t before = segment.begin - round_up(args.right, 8);
    neighbours_part(args, rows, std::max<int64_t>(before, 0), segment.begin, tiles, near, keys);
  }
  for (int64_t begin = segment.begin; begin < segment.end; begin += kChunk) {
    const int64_t end = std::min(begin + kChunk, segment.end);
    const int64_t count = round_up(end - begin, kVectorPad);
    NextRows next(args.element, rows, begin + kChunk, args.causal ? 3 : 2);
    next.add(args.q, args.head_dim).add(args.dq, args.head_dim).add(args.grad_out, args.value_dim);
    next.add(args.k, args.head_dim, args.right).add(args.v, args.value_dim, args.right);
    load_rows(args.element, args.q, rows, begin, count, args.head_dim, tiles.q);
    load_rows(args.element, args.grad_out, rows, begin, count, args.value_dim, tiles.grad);
    const bool keys_before = !args.causal || begin > 0;
    load_band(args, rows, begin, count, /*transpose_values=*/true, near);
    if (args.maps > 0) {
      if (args.causal) find_keys(args, rows, begin, count, near, tiles);
      far_backward_queries(args, rows, begin, count, keys_before, next, tiles, state, query_sums,
                           weight_sums);
    } else {
      next.ask_for_all();
      fill_row(count * width, Real(0), tiles.dq);
    }
    if (args.has_near) {
      near_part(args, rows, begin, count, tiles.dq, tiles, near, keys);
      for (int64_t i = 0; i < end - begin; ++i) {
        weight_sums[args.maps] += static_cast<double>(tiles.near_dots[i]);
      }
    }
    store_rows(args.element, tiles.dq, rows, begin, end, args.head_dim, args.dq);
  }
  if (args.has_near) {
    const int64_t after = std::min(segment.end + args.left, args.length);
    neighbours_part(args, rows, segment.end, after, tiles, near, keys);
  }
}

void QuerySweepF32(const SweepArgs<float>& args, const Segment& segment, Arena& arena,
                   FarState<float> state, FarState<float> query_sums, double* weight_sums) {
  query_sweep_of(args, segment, arena, state, query_sums, weight_sums);
}
void QuerySweepF64(const SweepArgs<double>& args, const Segment& segment, Arena& arena,
                   FarState<double> state, FarState<double> query_sums, double* weight_sums) {
  query_sweep_of(args, segment, arena, state, query_sums, weight_sums);
}

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fmmformer::cpu {

HWY_EXPORT(QuerySweepF32);
HWY_EXPORT(QuerySweepF64);

void query_sweep(const SweepArgs<float>& args, const Segment& segment, Arena& arena,
                 FarState<float> state, FarState<float> query_sums, double* weight_sums) {
  HWY_DYNAMIC_DISPATCH(QuerySweepF32)(args, segment, arena, state, query_sums, weight_sums);
}
void query_sweep(const SweepArgs<double>& args, const Segment& segment, Arena& arena,
                 FarState<double> state, FarState<double> query_sums, double* weight_sums) {
  HWY_DYNAMIC_DISPATCH(QuerySweepF64)(args, segment, arena, state, query_sums, weight_sums);
}

}  // namespace fmmformer::cpu
#endif  // HWY_ONCE
