// SPDX-License-Identifier: Apache-2.0
#include "attention/cpu/targets.h"
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/fmm/cpu/query_sweep.cpp"
#include "hwy/foreach_target.h"
// clang-format on
#include "attention/fmm/cpu/backward_queries-inl.h"
#include "attention/fmm/cpu/sweep.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {

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
  feature_rows(args, rows, begin, count, tiles.q, next, tiles.q_features);
  if (args.causal) feature_rows(args, rows, begin, count, tiles.k, next, tiles.k_features);
  const int64_t step = far_step_length(args);
  for (int64_t first = 0; first < count; first += step) {
    const int64_t tokens = std::min(step, count - first);
    sum_key_features(args, rows, first, tokens, keys_before || first > 0, tiles);
    if (args.causal)
      add_keys_transposed<Real>(args, first, tokens, tiles.k_features.values, tiles.v, tiles.sums_t,
                                tiles.sums_t);
  }
  gradient_of_query_features(args, rows, begin, count, tiles, next, state.key_sums, weight_sums);
  feature_rows_backward(args, count, tiles.q, tiles.q_features, tiles.gradient, tiles.dq);
  if (query_sums.sums != nullptr) add_queries(args, rows, begin, count, tiles, query_sums);
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
    near_part_of_queries<Real>(args, rows, begin, count, nullptr, tiles, near, keys);
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
    if (args.has_near) {
      constexpr Element kReal = native_element<Real>();
      next.add(kReal, args.near_dk, args.head_dim, args.right);
      next.add(kReal, args.near_dv, args.value_dim, args.right);
    }
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
      near_part_of_queries(args, rows, begin, count, tiles.dq, tiles, near, keys);
      add_near_dots(args, end - begin, tiles, weight_sums);
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
