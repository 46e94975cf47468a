// SPDX-License-Identifier: Apache-2.0
#include "attention/cpu/targets.h"
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/fast_weight/cpu/forward_sweep.cpp"
#include "hwy/foreach_target.h"
// clang-format on
#include <algorithm>

#include "attention/cpu/features-inl.h"
#include "attention/fast_weight/cpu/normalisers-inl.h"
#include "attention/fast_weight/cpu/substitution-inl.h"
#include "attention/fast_weight/cpu/sweep.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::fast_weight::HWY_NAMESPACE {

template <typename Real>
struct ForwardTiles {
  Real *q, *k, *v;                           // [kChunk, padded D or Dv]
  FeatureTile<Real> q_features, k_features;  // values: one tile, queries above keys
  Real* stacked;                             // [2 kChunk, padded D]: that tile
  Real* keys_t;                              // [padded D, kChunk]
  Real* results;                             // [2 kChunk, padded Dv]: out above what the keys read
  Real* written;                             // [kChunk, padded Dv]
  Real *query_key, *key_key;                 // [kChunk, kChunk]: <y_i, x_j> and <x_i, x_j>

  ForwardTiles(const SweepArgs<Real>& args, Arena& arena)
      : q_features(args, arena), k_features(args, arena) {
    const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim);
    for (Real** tile : {&q, &k, &keys_t}) *tile = arena.take<Real>(kChunk * width);
    for (Real** tile : {&v, &written}) *tile = arena.take<Real>(kChunk * value_width);
    for (Real** tile : {&query_key, &key_key}) *tile = arena.take<Real>(kChunk * kChunk);
    stacked = arena.take<Real>(2 * kChunk * width);
    results = arena.take<Real>(2 * kChunk * value_width);
  }
};

template <typename Real>
HWY_NOINLINE void forward_chunk(const SweepArgs<Real>& args, int64_t count, bool keys_before,
                                const RowSums<Real>& sums, ForwardTiles<Real>& tiles,
                                State<Real> state) {
  const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim);
  const Real *queries = tiles.q_features.values, *keys = tiles.k_features.values;
  transpose(count, width, keys, width, tiles.keys_t, kChunk);
  const RowTile<const Real> keys_t{tiles.keys_t, kChunk};
  product_lower(count, width, left_rows(queries, width), keys_t,
                RowTile<Real>{tiles.query_key, kChunk});
  product_lower(count, width, left_rows(keys, width), keys_t, RowTile<Real>{tiles.key_key, kChunk});
  // Without keys before the chunk depth 0: zeros.
  product(2 * count, value_width, keys_before ? width : 0, left_rows(queries, width),
          RowTile<const Real>{state.memory, value_width}, RowTile<Real>{tiles.results, value_width},
          Into::kOverwrite);
  read_and_write(count, value_width, tiles.key_key, tiles.v, sums.gates,
                 tiles.results + count * value_width, tiles.written);
  lower_times<Real>(count, value_width, tiles.query_key, kChunk, {tiles.written, value_width},
                    {tiles.results, value_width}, Into::kAdd);
  product(width, value_width, count, left_transposed(keys, width),
          RowTile<const Real>{tiles.written, value_width}, RowTile<Real>{state.memory, value_width},
          Into::kAdd);
}

template <typename Real>
void forward_sweep_of(const SweepArgs<Real>& args, const Segment& segment, Arena& arena,
                      State<Real> state) {
  const Rows rows = rows_of(args, segment);
  const int64_t first_live = first_live_row(rows);
  arena.reset();
  ForwardTiles<Real> tiles(args, arena);
  RowSums<Real> sums;
  for (int64_t begin = segment.begin; begin < segment.end; begin += kChunk) {
    const int64_t end = std::min(begin + kChunk, segment.end);
    const int64_t count = round_up(end - begin, cpu::kVectorPad);
    NextRows next(args.element, rows, begin + kChunk, /*loops=*/2);
    next.add(args.q, args.head_dim)
        .add(args.k, args.head_dim)
        .add(args.v, args.value_dim)
        .add(args.out, args.value_dim);
    load_rows(args.element, args.q, rows, begin, count, args.head_dim, tiles.q);
    load_rows(args.element, args.k, rows, begin, count, args.head_dim, tiles.k);
    load_rows(args.element, args.v, rows, begin, count, args.value_dim, tiles.v);
    tiles.q_features.values = tiles.stacked;
    tiles.k_features.values = tiles.stacked + count * padded(args.head_dim);
    feature_rows(args, rows, begin, count, tiles.q, next, tiles.q_features);
    feature_rows(args, rows, begin, count, tiles.k, next, tiles.k_features);
    sum_rows<Real>(args, rows, first_live, begin, count, tiles.k_features.values,
                   tiles.q_features.values, state.key_sums, sums);
    scale_queries<Real>(args, count, sums, tiles.q_features.values, tiles.q_features.values);
    forward_chunk(args, count, begin > 0, sums, tiles, state);
    store_rows(args.element, tiles.results, rows, begin, end, args.value_dim, args.out);
  }
}

void ForwardSweepF32(const SweepArgs<float>& args, const Segment& segment, Arena& arena,
                     State<float> state) {
  forward_sweep_of(args, segment, arena, state);
}
void ForwardSweepF64(const SweepArgs<double>& args, const Segment& segment, Arena& arena,
                     State<double> state) {
  forward_sweep_of(args, segment, arena, state);
}

}  // namespace fmmformer::fast_weight::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fmmformer::fast_weight {

HWY_EXPORT(ForwardSweepF32);
HWY_EXPORT(ForwardSweepF64);

void forward_sweep(const SweepArgs<float>& args, const Segment& segment, Arena& arena,
                   State<float> state) {
  HWY_DYNAMIC_DISPATCH(ForwardSweepF32)(args, segment, arena, state);
}
void forward_sweep(const SweepArgs<double>& args, const Segment& segment, Arena& arena,
                   State<double> state) {
  HWY_DYNAMIC_DISPATCH(ForwardSweepF64)(args, segment, arena, state);
}

}  // namespace fmmformer::fast_weight
#endif  // HWY_ONCE
