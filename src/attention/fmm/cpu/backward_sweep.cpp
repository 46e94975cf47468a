// SPDX-License-Identifier: Apache-2.0
#include "attention/cpu/targets.h"
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/fmm/cpu/backward_sweep.cpp"
#include "hwy/foreach_target.h"
// clang-format on
#include "attention/fmm/cpu/backward_keys-inl.h"
#include "attention/fmm/cpu/backward_queries-inl.h"
#include "attention/fmm/cpu/sweep.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {

// The state before every step, and the sums of key features before every chunk.
template <typename Real>
struct KeptStates {
  int64_t step, sums_size, features;
  Real *all_sums_t, *all_key_sums;

  KeptStates(const SweepArgs<Real>& args, Arena& arena)
      : step(far_step_length(args)),
        sums_size(feature_width(args) * padded(args.value_dim)),
        features(feature_width(args)),
        all_sums_t(arena.take<Real>((round_up(args.length, kChunk) / step) * sums_size)),
        all_key_sums(arena.take<Real>(round_up(args.length, kChunk) / kChunk * features)) {}

  Real* sums_t(int64_t token) const { return all_sums_t + token / step * sums_size; }  // [Dv, R]
  Real* key_sums(int64_t token) const { return all_key_sums + token / kChunk * features; }
};

// The first walk: over the keys alone, from the beginning.
template <typename Real>
void keep_states(const SweepArgs<Real>& args, const Rows& rows, QueryTiles<Real>& tiles,
                 KeptStates<Real>& kept) {
  fill_row(kept.sums_size, Real(0), kept.sums_t(0));
  fill_row(kept.features, Real(0), kept.key_sums(0));
  for (int64_t begin = 0; begin + kept.step < args.length; begin += kChunk) {
    NextRows next(args.element, rows, begin + kChunk, /*loops=*/1);
    next.add(args.k, args.head_dim).add(args.v, args.value_dim);
    load_rows(args.element, args.k, rows, begin, kChunk, args.head_dim, tiles.own_k);
    load_rows(args.element, args.v, rows, begin, kChunk, args.value_dim, tiles.own_v);
    feature_rows(args, rows, begin, kChunk, tiles.own_k, next, tiles.k_features);
    for (int64_t first = 0; first < kChunk && begin + first + kept.step < args.length;
         first += kept.step) {
      add_keys_transposed<Real>(args, first, kept.step, tiles.k_features.values, tiles.own_v,
                                kept.sums_t(begin + first), kept.sums_t(begin + first + kept.step));
    }
    if (begin + kChunk >= args.length) break;
    Real* after = kept.key_sums(begin + kChunk);
    copy_row(kept.key_sums(begin), kept.features, after);
    for (int64_t j = 0; j < kChunk; ++j)
      add_row(kept.features, tiles.k_features.values + j * kept.features, after);
  }
}

// The far field's part of a chunk's dq, dk and dv.
template <typename Real>
HWY_NOINLINE void far_backward(const SweepArgs<Real>& args, const Rows& rows, int64_t begin,
                               int64_t count, NextRows& next, const KeptStates<Real>& kept,
                               QueryTiles<Real>& queries, KeyTiles<Real>& keys,
                               FarState<Real> query_sums, double* weight_sums,
                               double* channel_sums) {
  const int64_t features = feature_width(args), step = kept.step;
  feature_rows(args, rows, begin, count, queries.q, next, queries.q_features);
  feature_rows(args, rows, begin, count, queries.k, next, queries.k_features);
  for (int64_t first = 0; first < count; first += step) {
    queries.sums_t = kept.sums_t(begin + first);
    sum_key_features(args, rows, first, std::min(step, count - first), begin + first > 0, queries);
  }
  gradient_of_query_features(args, rows, begin, count, queries, next, kept.key_sums(begin),
                             weight_sums);
  feature_rows_backward(args, count, queries.q, queries.q_features, queries.gradient, queries.dq);
  transpose(count, features, queries.k_features.values, features, keys.k_features_t, kChunk);
  scale_queries(args, rows, begin, count, queries.q_features.values, queries.q_features.values);
  for (int64_t first = (count - 1) / step * step; first >= 0; first -= step) {
    const int64_t end = std::min(first + step, count);
    const bool queries_after = begin + end < args.length;
    far_step_of_keys(args, rows, first, end - first, queries_after, keys, query_sums, channel_sums);
  }
  subtract_normaliser_part(args, rows, begin, count, keys, next, query_sums.key_sums);
  feature_rows_backward(args, count, keys.k, keys.k_features, keys.gradient, keys.dk);
}

template <typename Real>
void backward_sweep_of(const SweepArgs<Real>& args, const Segment& segment, Arena& arena,
                       FarState<Real> query_sums, double* weight_sums, double* channel_sums) {
  const Rows rows = rows_of(args, segment);
  const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim);
  arena.reset();
  QueryTiles<Real> queries(args, arena);
  KeyTiles<Real> keys(args, arena);
  // Both sides share the queries' tiles; what `keys` took for these stays untouched.
  keys.grad = queries.grad;
  keys.q_features = queries.q_features, keys.k_features = queries.k_features;
  keys.weight_grads = queries.weight_grads, keys.has_weight_grads = args.uniform_weights;
  NearScratch<Real> near(args, arena);
  CarriedKeys carried;
  KeptStates<Real> kept(args, arena);
  keep_states(args, rows, queries, kept);
  for (int64_t begin = (args.length - 1) / kChunk * kChunk; begin >= 0; begin -= kChunk) {
    const int64_t end = std::min(begin + kChunk, args.length);
    const int64_t count = round_up(end - begin, kVectorPad);
    NextRows next(args.element, rows, begin - kChunk, /*loops=*/4);
    next.add(args.q, args.head_dim).add(args.grad_out, args.value_dim);
    next.add(args.k, args.head_dim).add(args.v, args.value_dim);
    next.add(args.dq, args.head_dim).add(args.dk, args.head_dim).add(args.dv, args.value_dim);
    load_rows(args.element, args.q, rows, begin, count, args.head_dim, queries.q);
    load_rows(args.element, args.grad_out, rows, begin, count, args.value_dim, queries.grad);
    load_band(args, rows, begin, count, /*transpose_values=*/true, near);
    find_keys(args, rows, begin, count, near, queries);
    keys.k = queries.k, keys.v = queries.v;
    if (!args.uniform_weights) fill_row(count * value_width, Real(0), keys.dv);
    far_backward(args, rows, begin, count, next, kept, queries, keys, query_sums, weight_sums,
                 channel_sums);
    if (args.has_near) {
      near_part_of_queries(args, rows, begin, count, queries.dq, queries, near, carried);
      add_near_dots(args, end - begin, queries, weight_sums);
      const int64_t own = begin - near.block.begin;
      // Rows behind the end may hold anything: they are not stored, and must not be multiplied.
      add_near_part<Real>(args, rows, end - begin, near.dk + own * width,
                          near.dv + own * value_width, keys, channel_sums);
    }
    store_rows(args.element, queries.dq, rows, begin, end, args.head_dim, args.dq);
    store_rows(args.element, keys.dk, rows, begin, end, args.head_dim, args.dk);
    store_rows(args.element, keys.dv, rows, begin, end, args.value_dim, args.dv);
  }
}

void BackwardSweepF32(const SweepArgs<float>& args, const Segment& segment, Arena& arena,
                      FarState<float> query_sums, double* weight_sums, double* channel_sums) {
  backward_sweep_of(args, segment, arena, query_sums, weight_sums, channel_sums);
}
void BackwardSweepF64(const SweepArgs<double>& args, const Segment& segment, Arena& arena,
                      FarState<double> query_sums, double* weight_sums, double* channel_sums) {
  backward_sweep_of(args, segment, arena, query_sums, weight_sums, channel_sums);
}

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fmmformer::cpu {

HWY_EXPORT(BackwardSweepF32);
HWY_EXPORT(BackwardSweepF64);

void backward_sweep(const SweepArgs<float>& args, const Segment& segment, Arena& arena,
                    FarState<float> query_sums, double* weight_sums, double* channel_sums) {
  HWY_DYNAMIC_DISPATCH(BackwardSweepF32)
  (args, segment, arena, query_sums, weight_sums, channel_sums);
}
void backward_sweep(const SweepArgs<double>& args, const Segment& segment, Arena& arena,
                    FarState<double> query_sums, double* weight_sums, double* channel_sums) {
  HWY_DYNAMIC_DISPATCH(BackwardSweepF64)
  (args, segment, arena, query_sums, weight_sums, channel_sums);
}

}  // namespace fmmformer::cpu
#endif  // HWY_ONCE
