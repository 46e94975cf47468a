// SPDX-License-Identifier: Apache-2.0
#include "attention/cpu/targets.h"
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/fmm/cpu/key_sweep.cpp"
#include "hwy/foreach_target.h"
// clang-format on
#include "attention/fmm/cpu/far_field-inl.h"
#include "attention/fmm/cpu/sweep.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {

template <typename Real>
struct KeyTiles {
  Real *q, *k, *v, *grad, *group_v, *dk, *group_dk, *dv, *group_dv;  // [kChunk, padded D or Dv]
  FeatureTile<Real> q_features, k_features;  // [kChunk, R]; q_features scaled by query_factor
  Real* gradient;                            // [kChunk, R], of the key features
  Real* k_features_t;                        // [R, kChunk]
  Real* v_t;                                 // [padded Dv, kChunk]
  Real *weights, *weight_grads;              // [kChunk, kChunk]: <Fq_i, Fk_j> and <dO_i, v_j>
  Real* sums_t;                              // [padded Dv, R]: G transposed

  KeyTiles(const SweepArgs<Real>& args, Arena& arena)
      : q_features(args, arena), k_features(args, arena) {
    const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim);
    const int64_t features = feature_width(args);
    for (Real** tile : {&q, &k, &dk, &group_dk}) *tile = arena.take<Real>(kChunk * width);
    for (Real** tile : {&v, &grad, &group_v, &dv, &group_dv})
      *tile = arena.take<Real>(kChunk * value_width);
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
// Fq_i, for one group.
template <typename Real>
HWY_INLINE void group_gradients(const SweepArgs<Real>& args, int64_t count, bool queries_after,
                                const MapGroup<Real>& group, KeyTiles<Real>& tiles,
                                FarState<Real> query_sums, Real* dv) {
  const int64_t features = feature_width(args), value_width = padded(args.value_dim);
  const RowTile<Real> values{dv, value_width}, gradient{tiles.gradient + group.begin, features};
  const Real* v = tiles.v;
  if (group.weight != nullptr) {
    weigh_rows(count, args.value_dim, group.weight, tiles.v, tiles.group_v);
    v = tiles.group_v;
  }
  Into into = Into::kOverwrite;
  if (args.causal) {
    product_lower(count, group.width,
                  left_rows<Real>(tiles.q_features.values + group.begin, features),
                  RowTile<const Real>{tiles.k_features_t + group.begin * kChunk, kChunk},
                  RowTile<Real>{tiles.weights, kChunk});
    lower_transposed_times<Real>(count, value_width, tiles.weights, kChunk,
                                 {tiles.grad, value_width}, values, into);
    transpose(count, value_width, v, value_width, tiles.v_t, kChunk);
    product_lower(count, value_width, left_rows<Real>(tiles.grad, value_width),
                  RowTile<const Real>{tiles.v_t, kChunk},
                  RowTile<Real>{tiles.weight_grads, kChunk});
    lower_transposed_times<Real>(count, group.width, tiles.weight_grads, kChunk,
                                 {tiles.q_features.values + group.begin, features}, gradient, into);
    into = Into::kAdd;
  }
  if (queries_after) {
    product(count, value_width, group.width,
            left_rows<Real>(tiles.k_features.values + group.begin, features),
            RowTile<const Real>{query_sums.sums + group.begin * value_width, value_width}, values,
            into);
    product(count, group.width, value_width, left_rows(v, value_width),
            RowTile<const Real>{tiles.sums_t + group.begin, features}, gradient, into);
  }
}

// dFk_j -= sum_i dot_i Fq_i over the queries that reach j: the normaliser's part, row by row from
// the end.
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

template <typename Real>
HWY_NOINLINE void far_backward_keys(const SweepArgs<Real>& args, const Rows& rows, int64_t begin,
                                    int64_t count, bool queries_after, NextRows& next,
                                    KeyTiles<Real>& tiles, FarState<Real> query_sums,
                                    double* weight_sums) {
  const int64_t features = feature_width(args), value_width = padded(args.value_dim);
  feature_rows(args, rows, begin, count, tiles.k, next, tiles.k_features);
  if (args.causal) {
    transpose(count, features, tiles.k_features.values, features, tiles.k_features_t, kChunk);
    load_rows(args.element, args.q, rows, begin, count, args.head_dim, tiles.q);
    load_rows(args.element, args.grad_out, rows, begin, count, args.value_dim, tiles.grad);
    feature_rows(args, rows, begin, count, tiles.q, next, tiles.q_features);
    scale_queries(args, rows, begin, count, tiles.q_features.values, tiles.q_features.values);
    if (queries_after)
      transpose(features, value_width, query_sums.sums, value_width, tiles.sums_t, features);
  }
  for (int g = 0; g < group_count(args); ++g) {
    const MapGroup<Real> group = group_of(args, rows.head, g);
    group_gradients(args, count, queries_after, group, tiles, query_sums,
                    group.weight == nullptr ? tiles.dv : tiles.group_dv);
    if (group.weight != nullptr) {
      add_weighted_values(count, args.value_dim, group.weight, tiles.v, tiles.group_dv, tiles.dv,
                          weight_sums + g * value_width);
    }
  }
  subtract_normaliser_part(args, rows, begin, count, tiles, next, query_sums.key_sums);
  feature_rows_backward(args, count, tiles.k, tiles.k_features, tiles.gradient, tiles.dk);
  if (args.causal) {
    product(features, value_width, count, left_transposed<Real>(tiles.q_features.values, features),
            RowTile<const Real>{tiles.grad, value_width},
            RowTile<Real>{query_sums.sums, value_width}, Into::kAdd);
  }
}

// What the query sweep left for these keys.
template <typename Real>
void near_part(const SweepArgs<Real>& args, const Rows& rows, int64_t begin, int64_t count,
               KeyTiles<Real>& tiles, double* weight_sums) {
  const Real* weight = args.near_weight + rows.head * args.value_dim;
  constexpr Element kReal = native_element<Real>();
  load_rows(kReal, args.near_dk, rows, begin, count, args.head_dim, tiles.group_dk);
  load_rows(kReal, args.near_dv, rows, begin, count, args.value_dim, tiles.group_dv);
  add_row(count * padded(args.head_dim), tiles.group_dk, tiles.dk);
  if (args.uniform_weights) {
    add_scaled_row(count * padded(args.value_dim), weight[0], tiles.group_dv, tiles.dv);
  } else {
    add_weighted_values(count, args.value_dim, weight, tiles.v, tiles.group_dv, tiles.dv,
                        weight_sums + args.maps * padded(args.value_dim));
  }
}

template <typename Real>
void key_sweep_of(const SweepArgs<Real>& args, const Segment& segment, Arena& arena,
                  FarState<Real> query_sums, double* weight_sums) {
  const Rows rows = rows_of(args, segment);
  const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim),
                features = feature_width(args);
  arena.reset();
  KeyTiles<Real> tiles(args, arena);
  if (args.maps > 0 && !args.causal) {
    transpose(features, value_width, query_sums.sums, value_width, tiles.sums_t, features);
  }
  const int64_t chunks = (segment.end - segment.begin + kChunk - 1) / kChunk;
  for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
    const int64_t begin = segment.begin + chunk * kChunk,
                  end = std::min(begin + kChunk, segment.end);
    const int64_t count = round_up(end - begin, kVectorPad);
    NextRows next(args.element, rows, begin - kChunk, args.causal ? 3 : 2);
    next.add(args.q, args.head_dim).add(args.k, args.head_dim).add(args.dk, args.head_dim);
    next.add(args.v, args.value_dim)
        .add(args.grad_out, args.value_dim)
        .add(args.dv, args.value_dim);
    load_rows(args.element, args.k, rows, begin, count, args.head_dim, tiles.k);
    load_rows(args.element, args.v, rows, begin, count, args.value_dim, tiles.v);
    if (args.maps == 0) {
      next.ask_for_all();
      fill_row(count * width, Real(0), tiles.dk);
    }
    if (args.maps == 0 || !args.uniform_weights) fill_row(count * value_width, Real(0), tiles.dv);
    const bool queries_after = !args.causal || end < args.length;
    if (args.maps > 0)
      far_backward_keys(args, rows, begin, count, queries_after, next, tiles, query_sums,
                        weight_sums);
    if (args.has_near) near_part(args, rows, begin, count, tiles, weight_sums);
    store_rows(args.element, tiles.dk, rows, begin, end, args.head_dim, args.dk);
    store_rows(args.element, tiles.dv, rows, begin, end, args.value_dim, args.dv);
  }
}

void KeySweepF32(const SweepArgs<float>& args, const Segment& segment, Arena& arena,
                 FarState<float> query_sums, double* weight_sums) {
  key_sweep_of(args, segment, arena, query_sums, weight_sums);
}
void KeySweepF64(const SweepArgs<double>& args, const Segment& segment, Arena& arena,
                 FarState<double> query_sums, double* weight_sums) {
  key_sweep_of(args, segment, arena, query_sums, weight_sums);
}

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fmmformer::cpu {

HWY_EXPORT(KeySweepF32);
HWY_EXPORT(KeySweepF64);

void key_sweep(const SweepArgs<float>& args, const Segment& segment, Arena& arena,
               FarState<float> query_sums, double* weight_sums) {
  HWY_DYNAMIC_DISPATCH(KeySweepF32)(args, segment, arena, query_sums, weight_sums);
}
void key_sweep(const SweepArgs<double>& args, const Segment& segment, Arena& arena,
               FarState<double> query_sums, double* weight_sums) {
  HWY_DYNAMIC_DISPATCH(KeySweepF64)(args, segment, arena, query_sums, weight_sums);
}

}  // namespace fmmformer::cpu
#endif  // HWY_ONCE
