// SPDX-License-Identifier: Apache-2.0
#include "attention/cpu/targets.h"
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/fmm/cpu/forward_sweep.cpp"
#include "hwy/foreach_target.h"
// clang-format on
#include "attention/fmm/cpu/far_field-inl.h"
#include "attention/fmm/cpu/near_forward-inl.h"
#include "attention/fmm/cpu/sweep.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {

template <typename Real>
struct ForwardTiles {
  Real *q, *own_k, *own_v, *out, *group_out;  // [kChunk, padded D or Dv]
  const Real *k, *v;                          // own_k and own_v, or part of the near field's block
  FeatureTile<Real> q_features, k_features;   // [kChunk, R]
  Real* k_features_t;                         // [R, kChunk]
  Real* weights;                              // [kChunk, kChunk]: <Fq_i, Fk_j>

  ForwardTiles(const SweepArgs<Real>& args, Arena& arena)
      : q_features(args, arena), k_features(args, arena) {
    const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim),
                  features = feature_width(args);
    q = arena.take<Real>(kChunk * width);
    own_k = arena.take<Real>(kChunk * width);
    own_v = arena.take<Real>(kChunk * value_width);
    out = arena.take<Real>(kChunk * value_width);
    group_out = arena.take<Real>(kChunk * value_width);
    k_features_t = arena.take<Real>(features * kChunk);
    weights = arena.take<Real>(kChunk * kChunk);
    q_features.keeps_exps = k_features.keeps_exps = false;
  }
};

// S += Fk^T V for the keys [first, first + count) of the chunk.
template <typename Real>
void add_keys(const SweepArgs<Real>& args, int64_t first, int64_t count,
              const ForwardTiles<Real>& tiles, FarState<Real> state) {
  const int64_t features = feature_width(args), value_width = padded(args.value_dim);
  product(features, value_width, count,
          left_transposed<Real>(tiles.k_features.values + first * features, features),
          RowTile<const Real>{tiles.v + first * value_width, value_width},
          RowTile<Real>{state.sums, value_width}, Into::kAdd);
}

template <typename Real>
void load_keys(const SweepArgs<Real>& args, const Rows& rows, int64_t begin, int64_t count,
               ForwardTiles<Real>& tiles) {
  load_rows(args.element, args.k, rows, begin, count, args.head_dim, tiles.own_k);
  load_rows(args.element, args.v, rows, begin, count, args.value_dim, tiles.own_v);
  tiles.k = tiles.own_k, tiles.v = tiles.own_v;
}

template <typename Real>
void sum_keys_of(const SweepArgs<Real>& args, const Segment& segment, Arena& arena,
                 FarState<Real> state) {
  const int64_t features = feature_width(args);
  const Rows rows = rows_of(args, segment);
  arena.reset();
  ForwardTiles<Real> tiles(args, arena);
  for (int64_t begin = segment.begin; begin < segment.end; begin += kChunk) {
    const int64_t count = round_up(std::min(kChunk, segment.end - begin), 8);
    NextRows next(args.element, rows, begin + kChunk, /*loops=*/1);
    next.add(args.k, args.head_dim).add(args.v, args.value_dim);
    load_keys(args, rows, begin, count, tiles);
    feature_rows(args, rows, begin, count, tiles.k, next, tiles.k_features);
    add_keys(args, 0, count, tiles, state);
    for (int64_t j = 0; j < count; ++j)
      add_row(features, tiles.k_features.values + j * features, state.key_sums);
  }
}

// Normalisers of kRowsTogether rows from the dot products of queries and key sums; kept for
// backward. 1 for rows that are not live.
template <typename Real>
HWY_INLINE void make_normalisers(const SweepArgs<Real>& args, const Rows& rows, int64_t begin,
                                 int map, const hn::Vec<hn::ScalableTag<Real>>* products,
                                 Real* normalisers) {
  if (!has_row_sums(args)) {
    std::fill_n(normalisers, kRowsTogether, constant_normaliser(args));
    return;
  }
  sums_of_lanes(hn::ScalableTag<Real>(), products, normalisers);
  for (int64_t i = 0; i < kRowsTogether; ++i)
    normalisers[i] = normaliser_from_sum(args, map, normalisers[i]);
  if (!rows.all_live(begin, kRowsTogether)) {
    for (int64_t i = 0; i < kRowsTogether; ++i) {
      if (!rows.live(begin + i)) normalisers[i] = Real(1);
    }
  }
  copy_existing_rows(args, begin, normalisers, normalisers_of(args, rows, map) + begin);
}

// Row by row: the sum of the keys' features so far, the normalisers from it, and the query rows
// scaled by them.
template <typename Real>
HWY_NOINLINE void normalise_queries(const SweepArgs<Real>& args, const Rows& rows, int64_t begin,
                                    int64_t count, const ForwardTiles<Real>& tiles, NextRows& next,
                                    Real* key_sums) {
  const int64_t width = padded(args.head_dim), features = feature_width(args);
  hn::Vec<hn::ScalableTag<Real>> products[kMaxFeatureMaps][kRowsTogether];
  Real normalisers[kRowsTogether], factors[kRowsTogether];
  for (int64_t first = 0; first < count; first += kRowsTogether) {
    Real* queries = tiles.q_features.values + first * features;
    for (int64_t i = 0; i < kRowsTogether; ++i) {
      next.ask();
      if (args.causal)
        add_row(features, tiles.k_features.values + (first + i) * features, key_sums);
      for (int l = 0; l < args.maps && has_row_sums(args); ++l)
        products[l][i] =
            products_of_rows(width, queries + i * features + l * width, key_sums + l * width);
    }
    for (int l = 0; l < args.maps; ++l) {
      make_normalisers(args, rows, begin + first, l, products[l], normalisers);
      query_factors(args, rows, begin + first, l, normalisers, factors);
      for (int64_t i = 0; i < kRowsTogether; ++i) {
        Real* query = queries + i * features + l * width;
        scale_row(width, factors[i], query, query);
      }
    }
  }
}

// The far field of the queries [first, first + count) of the chunk: the keys before them from the
// state, those among them one by one.
template <typename Real>
HWY_INLINE void far_step(const SweepArgs<Real>& args, const Rows& rows, int64_t first,
                         int64_t count, bool keys_before, ForwardTiles<Real>& tiles,
                         FarState<Real> state) {
  const int64_t features = feature_width(args), value_width = padded(args.value_dim);
  for (int g = 0; g < group_count(args); ++g) {
    const MapGroup<Real> group = group_of(args, rows.head, g);
    Real* out = tiles.out + first * value_width;
    const RowTile<Real> result{group.weight == nullptr ? out : tiles.group_out, value_width};
    const auto queries =
        left_rows<Real>(tiles.q_features.values + first * features + group.begin, features);
    Into into = Into::kOverwrite;
    if (args.causal) {
      product_lower(count, group.width, queries,
                    RowTile<const Real>{tiles.k_features_t + group.begin * kChunk + first, kChunk},
                    RowTile<Real>{tiles.weights, kChunk});
      lower_times<Real>(count, value_width, tiles.weights, kChunk,
                        {tiles.v + first * value_width, value_width}, result, into);
      into = Into::kAdd;
    }
    if (keys_before) {
      product(count, value_width, group.width, queries,
              RowTile<const Real>{state.sums + group.begin * value_width, value_width}, result,
              into);
    }
    if (group.weight != nullptr) {
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t e = 0; e < args.value_dim; ++e) {
          out[i * value_width + e] += group.weight[e] * tiles.group_out[i * value_width + e];
        }
      }
    }
  }
  if (args.causal) add_keys(args, first, count, tiles, state);
}

template <typename Real>
HWY_NOINLINE void far_forward(const SweepArgs<Real>& args, const Rows& rows, int64_t begin,
                              int64_t count, bool keys_before, NextRows& next,
                              ForwardTiles<Real>& tiles, FarState<Real> state) {
  feature_rows(args, rows, begin, count, tiles.q, next, tiles.q_features);
  if (args.causal) {
    const int64_t features = feature_width(args);
    feature_rows(args, rows, begin, count, tiles.k, next, tiles.k_features);
    transpose(count, features, tiles.k_features.values, features, tiles.k_features_t, kChunk);
  }
  normalise_queries(args, rows, begin, count, tiles, next, state.key_sums);
  const int64_t step = far_step_length(args);
  for (int64_t first = 0; first < count; first += step) {
    far_step(args, rows, first, std::min(step, count - first), keys_before || first > 0, tiles,
             state);
  }
}

template <typename Real>
void forward_sweep_of(const SweepArgs<Real>& args, const Segment& segment, Arena& arena,
                      FarState<Real> state) {
  const Rows rows = rows_of(args, segment);
  const int64_t value_width = padded(args.value_dim);
  arena.reset();
  ForwardTiles<Real> tiles(args, arena);
  NearScratch<Real> near(args, arena);
  for (int64_t begin = segment.begin; begin < segment.end; begin += kChunk) {
    const int64_t end = std::min(begin + kChunk, segment.end);
    const int64_t count = round_up(end - begin, kVectorPad);
    NextRows next(args.element, rows, begin + kChunk, args.causal ? 3 : 2);
    next.add(args.q, args.head_dim).add(args.out, args.value_dim);
    next.add(args.k, args.head_dim, args.right).add(args.v, args.value_dim, args.right);
    load_rows(args.element, args.q, rows, begin, count, args.head_dim, tiles.q);
    if (args.maps == 0 || !args.uniform_weights) fill_row(count * value_width, Real(0), tiles.out);
    load_band(args, rows, begin, count, /*transpose_values=*/false, near);
    if (near.holds_band) {
      tiles.k = near.block.k + (begin - near.block.begin) * padded(args.head_dim);
      tiles.v = near.block.v + (begin - near.block.begin) * value_width;
    } else if (args.causal && args.maps > 0) {
      load_keys(args, rows, begin, count, tiles);
    }
    const bool keys_before = !args.causal || begin > 0;
    args.maps > 0 ? far_forward(args, rows, begin, count, keys_before, next, tiles, state)
                  : next.ask_for_all();
    if (args.has_near) near_forward(args, rows, begin, count, tiles.q, tiles.out, near);
    store_rows(args.element, tiles.out, rows, begin, end, args.value_dim, args.out);
  }
}

void SumKeysF32(const SweepArgs<float>& args, const Segment& segment, Arena& arena,
                FarState<float> state) {
  sum_keys_of(args, segment, arena, state);
}
void SumKeysF64(const SweepArgs<double>& args, const Segment& segment, Arena& arena,
                FarState<double> state) {
  sum_keys_of(args, segment, arena, state);
}
void ForwardSweepF32(const SweepArgs<float>& args, const Segment& segment, Arena& arena,
                     FarState<float> state) {
  forward_sweep_of(args, segment, arena, state);
}
void ForwardSweepF64(const SweepArgs<double>& args, const Segment& segment, Arena& arena,
                     FarState<double> state) {
  forward_sweep_of(args, segment, arena, state);
}

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fmmformer::cpu {

HWY_EXPORT(SumKeysF32);
HWY_EXPORT(SumKeysF64);
HWY_EXPORT(ForwardSweepF32);
HWY_EXPORT(ForwardSweepF64);

void sum_keys(const SweepArgs<float>& args, const Segment& segment, Arena& arena,
              FarState<float> state) {
  HWY_DYNAMIC_DISPATCH(SumKeysF32)(args, segment, arena, state);
}
void sum_keys(const SweepArgs<double>& args, const Segment& segment, Arena& arena,
              FarState<double> state) {
  HWY_DYNAMIC_DISPATCH(SumKeysF64)(args, segment, arena, state);
}
void forward_sweep(const SweepArgs<float>& args, const Segment& segment, Arena& arena,
                   FarState<float> state) {
  HWY_DYNAMIC_DISPATCH(ForwardSweepF32)(args, segment, arena, state);
}
void forward_sweep(const SweepArgs<double>& args, const Segment& segment, Arena& arena,
                   FarState<double> state) {
  HWY_DYNAMIC_DISPATCH(ForwardSweepF64)(args, segment, arena, state);
}

}  // namespace fmmformer::cpu
#endif  // HWY_ONCE
