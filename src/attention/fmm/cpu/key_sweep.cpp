// SPDX-License-Identifier: Apache-2.0
#include "attention/cpu/targets.h"
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/fmm/cpu/key_sweep.cpp"
#include "hwy/foreach_target.h"
// clang-format on
#include "attention/fmm/cpu/backward_keys-inl.h"
#include "attention/fmm/cpu/sweep.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {

// The rows of a chunk, as they are loaded.
template <typename Real>
struct LoadedRows {
  Real *q, *k, *v, *grad, *near_dk, *near_dv;  // [kChunk, padded D or Dv]

  LoadedRows(const SweepArgs<Real>& args, Arena& arena) {
    for (Real** tile : {&q, &k, &near_dk}) *tile = arena.take<Real>(kChunk * padded(args.head_dim));
    for (Real** tile : {&v, &grad, &near_dv})
      *tile = arena.take<Real>(kChunk * padded(args.value_dim));
  }
};

template <typename Real>
HWY_NOINLINE void far_backward_keys(const SweepArgs<Real>& args, const Rows& rows, int64_t begin,
                                    int64_t count, bool queries_after, NextRows& next,
                                    LoadedRows<Real>& loaded, KeyTiles<Real>& tiles,
                                    FarState<Real> query_sums, double* weight_sums) {
  feature_rows(args, rows, begin, count, tiles.k, next, tiles.k_features);
  if (args.causal) {
    const int64_t features = feature_width(args);
    transpose(count, features, tiles.k_features.values, features, tiles.k_features_t, kChunk);
    load_rows(args.element, args.q, rows, begin, count, args.head_dim, loaded.q);
    load_rows(args.element, args.grad_out, rows, begin, count, args.value_dim, loaded.grad);
    feature_rows(args, rows, begin, count, loaded.q, next, tiles.q_features);
    scale_queries(args, rows, begin, count, tiles.q_features.values, tiles.q_features.values);
  }
  const int64_t step = far_step_length(args);
  for (int64_t first = (count - 1) / step * step; first >= 0; first -= step) {
    const int64_t end = std::min(first + step, count);
    far_step_of_keys(args, rows, first, end - first, queries_after || end < count, tiles,
                     query_sums, weight_sums);
  }
  subtract_normaliser_part(args, rows, begin, count, tiles, next, query_sums.key_sums);
  feature_rows_backward(args, count, tiles.k, tiles.k_features, tiles.gradient, tiles.dk);
}

template <typename Real>
void key_sweep_of(const SweepArgs<Real>& args, const Segment& segment, Arena& arena,
                  FarState<Real> query_sums, double* weight_sums) {
  const Rows rows = rows_of(args, segment);
  const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim),
                features = feature_width(args);
  arena.reset();
  LoadedRows<Real> loaded(args, arena);
  KeyTiles<Real> tiles(args, arena);
  tiles.k = loaded.k, tiles.v = loaded.v, tiles.grad = loaded.grad;
  if (args.maps > 0 && !args.causal) {
    transpose(features, value_width, query_sums.sums, value_width, tiles.sums_t, features);
  }
  const int64_t chunks = (segment.end - segment.begin + kChunk - 1) / kChunk;
  for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
    const int64_t begin = segment.begin + chunk * kChunk,
                  end = std::min(begin + kChunk, segment.end);
    const int64_t count = round_up(end - begin, kVectorPad);
    NextRows next(args.element, rows, begin - kChunk, args.causal ? 3 : 2);
    next.add(args.k, args.head_dim).add(args.v, args.value_dim);
    next.add(args.dk, args.head_dim).add(args.dv, args.value_dim);
    if (args.causal) next.add(args.q, args.head_dim).add(args.grad_out, args.value_dim);
    load_rows(args.element, args.k, rows, begin, count, args.head_dim, loaded.k);
    load_rows(args.element, args.v, rows, begin, count, args.value_dim, loaded.v);
    if (args.maps == 0) {
      next.ask_for_all();
      fill_row(count * width, Real(0), tiles.dk);
    }
    if (args.maps == 0 || !args.uniform_weights) fill_row(count * value_width, Real(0), tiles.dv);
    const bool queries_after = !args.causal || end < args.length;
    if (args.maps > 0)
      far_backward_keys(args, rows, begin, count, queries_after, next, loaded, tiles, query_sums,
                        weight_sums);
    if (args.has_near) {  // what the query sweep left for these keys
      constexpr Element kReal = native_element<Real>();
      load_rows(kReal, args.near_dk, rows, begin, count, args.head_dim, loaded.near_dk);
      load_rows(kReal, args.near_dv, rows, begin, count, args.value_dim, loaded.near_dv);
      add_near_part<Real>(args, rows, count, loaded.near_dk, loaded.near_dv, tiles, weight_sums);
    }
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
