// SPDX-License-Identifier: Apache-2.0
// Backward goes through a segment twice: forwards, to make the states and writes of its chunks
// again, and back, for the gradients.
#include "attention/cpu/targets.h"
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/fast_weight/cpu/backward_sweep.cpp"
#include "hwy/foreach_target.h"
// clang-format on
#include <algorithm>
#include <vector>

#include "attention/cpu/features-inl.h"
#include "attention/fast_weight/cpu/normalisers-inl.h"
#include "attention/fast_weight/cpu/substitution-inl.h"
#include "attention/fast_weight/cpu/sweep.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::fast_weight::HWY_NAMESPACE {

/// What the first pass leaves of a chunk for the second.
template <typename Real>
struct ChunkRecord {
  Real* memory_t;             // [padded Dv, padded D]: the state before the chunk, transposed
  Real* key_sums;             // [padded D]: before the chunk
  Real* key_key;              // [kChunk, kChunk]: <x_i, x_j>
  Real *retrieved, *written;  // [kChunk, padded Dv]

  ChunkRecord(const SweepArgs<Real>& args, Arena& arena) {
    const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim);
    memory_t = arena.take<Real>(value_width * width);
    key_sums = arena.take<Real>(width);
    key_key = arena.take<Real>(kChunk * kChunk);
    retrieved = arena.take<Real>(kChunk * value_width);
    written = arena.take<Real>(kChunk * value_width);
  }
};

template <typename Real>
struct BackwardTiles {
  Real *q, *k, *v, *dx, *dv;                 // [kChunk, padded D or Dv]
  FeatureTile<Real> q_features, k_features;  // the keys' values lie in `stacked`
  Real* stacked;        // [2 kChunk, padded D]: scaled feature rows of the queries above the keys'
  Real* stacked_grads;  // [2 kChunk, padded Dv]: dO above E
  Real* stacked_dx;     // [2 kChunk, padded D]: gradients of the rows of `stacked`
  Real* keys_t;         // [padded D, kChunk]
  Real* written_t;      // [padded Dv, kChunk]
  Real* gradient_t;     // [padded Dv, padded D]: G transposed
  Real* key_sums;       // [padded D]
  Real *query_key, *query_key_grads, *key_key_grads, *key_key_grads_t;  // [kChunk, kChunk]
  Real overlap_grads[kChunk], dots[kChunk];

  BackwardTiles(const SweepArgs<Real>& args, Arena& arena)
      : q_features(args, arena), k_features(args, arena) {
    const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim);
    for (Real** tile : {&q, &k, &dx, &keys_t}) *tile = arena.take<Real>(kChunk * width);
    for (Real** tile : {&v, &dv, &written_t}) *tile = arena.take<Real>(kChunk * value_width);
    for (Real** tile : {&query_key, &query_key_grads, &key_key_grads, &key_key_grads_t})
      *tile = arena.take<Real>(kChunk * kChunk);
    for (Real** tile : {&stacked, &stacked_dx}) *tile = arena.take<Real>(2 * kChunk * width);
    stacked_grads = arena.take<Real>(2 * kChunk * value_width);
    gradient_t = arena.take<Real>(value_width * width);
    key_sums = arena.take<Real>(width);
  }
};

/// A chunk's rows: [begin, end) exist, `count` are computed.
struct Chunk {
  int64_t begin, end, count;

  Chunk(const Segment& segment, int64_t index)
      : begin(segment.begin + index * kChunk),
        end(std::min(begin + kChunk, segment.end)),
        count(round_up(end - begin, cpu::kVectorPad)) {}
  bool keys_before() const { return begin > 0; }
};

// First pass: forward without queries.
template <typename Real>
HWY_NOINLINE void record_chunk(const SweepArgs<Real>& args, const Rows& rows, int64_t first_live,
                               const Chunk& chunk, BackwardTiles<Real>& tiles, State<Real> state,
                               ChunkRecord<Real>& record) {
  const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim);
  const int64_t count = chunk.count;
  NextRows next(args.element, rows, chunk.begin + kChunk, /*loops=*/1);
  next.add(args.k, args.head_dim).add(args.v, args.value_dim);
  load_rows(args.element, args.k, rows, chunk.begin, count, args.head_dim, tiles.k);
  load_rows(args.element, args.v, rows, chunk.begin, count, args.value_dim, tiles.v);
  tiles.k_features.values = tiles.stacked;
  feature_rows(args, rows, chunk.begin, count, tiles.k, next, tiles.k_features);
  const Real* keys = tiles.stacked;
  copy_row(state.key_sums, width, record.key_sums);
  RowSums<Real> sums;
  sum_rows<Real>(args, rows, first_live, chunk.begin, count, keys, nullptr, state.key_sums, sums);
  transpose(width, value_width, state.memory, value_width, record.memory_t, width);
  transpose(count, width, keys, width, tiles.keys_t, kChunk);
  product_lower(count, width, left_rows(keys, width), RowTile<const Real>{tiles.keys_t, kChunk},
                RowTile<Real>{record.key_key, kChunk});
  product(count, value_width, chunk.keys_before() ? width : 0, left_rows(keys, width),
          RowTile<const Real>{state.memory, value_width},
          RowTile<Real>{record.retrieved, value_width}, Into::kOverwrite);
  read_and_write(count, value_width, record.key_key, tiles.v, sums.gates, record.retrieved,
                 record.written);
  product(width, value_width, count, left_transposed(keys, width),
          RowTile<const Real>{record.written, value_width},
          RowTile<Real>{state.memory, value_width}, Into::kAdd);
}

// Everything that forward had of a chunk, once more.
template <typename Real>
HWY_NOINLINE void load_chunk(const SweepArgs<Real>& args, const Rows& rows, int64_t first_live,
                             const Chunk& chunk, const ChunkRecord<Real>& record,
                             BackwardTiles<Real>& tiles, RowSums<Real>& sums) {
  const int64_t width = padded(args.head_dim), count = chunk.count;
  NextRows next(args.element, rows, chunk.begin - kChunk, /*loops=*/2);
  next.add(args.q, args.head_dim).add(args.k, args.head_dim).add(args.v, args.value_dim);
  next.add(args.grad_out, args.value_dim).add(args.dq, args.head_dim).add(args.dk, args.head_dim);
  load_rows(args.element, args.q, rows, chunk.begin, count, args.head_dim, tiles.q);
  load_rows(args.element, args.k, rows, chunk.begin, count, args.head_dim, tiles.k);
  load_rows(args.element, args.v, rows, chunk.begin, count, args.value_dim, tiles.v);
  load_rows(args.element, args.grad_out, rows, chunk.begin, count, args.value_dim,
            tiles.stacked_grads);
  tiles.k_features.values = tiles.stacked + count * width;
  feature_rows(args, rows, chunk.begin, count, tiles.q, next, tiles.q_features);
  feature_rows(args, rows, chunk.begin, count, tiles.k, next, tiles.k_features);
  copy_row(record.key_sums, width, tiles.key_sums);
  sum_rows<Real>(args, rows, first_live, chunk.begin, count, tiles.k_features.values,
                 tiles.q_features.values, tiles.key_sums, sums);
  scale_queries<Real>(args, count, sums, tiles.q_features.values, tiles.stacked);
}

// dR and E of sweep.h, from what the queries of the chunk and all later tokens read.
template <typename Real>
HWY_NOINLINE void gradient_of_writes(const SweepArgs<Real>& args, const Chunk& chunk,
                                     const ChunkRecord<Real>& record, const RowSums<Real>& sums,
                                     BackwardTiles<Real>& tiles, State<Real> gradient) {
  const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim);
  const int64_t count = chunk.count;
  const Real* keys = tiles.k_features.values;
  transpose(count, width, keys, width, tiles.keys_t, kChunk);
  product_lower<Real>(count, width, left_rows<Real>(tiles.stacked, width), {tiles.keys_t, kChunk},
                      {tiles.query_key, kChunk});
  lower_transposed_times<Real>(count, value_width, tiles.query_key, kChunk,
                               {tiles.stacked_grads, value_width}, {tiles.dv, value_width},
                               Into::kOverwrite);
  if (chunk.end < args.length) {
    product(count, value_width, width, left_rows(keys, width),
            RowTile<const Real>{gradient.memory, value_width}, RowTile<Real>{tiles.dv, value_width},
            Into::kAdd);
  }
  read_and_write_backward(count, value_width, record.key_key, sums.gates, tiles.dv,
                          tiles.stacked_grads + count * value_width);
}

// matrix = strictly lower(matrix) + its transpose
template <typename Real>
HWY_INLINE void make_symmetric(int64_t count, Real* matrix, Real* scratch) {
  for (int64_t i = 0; i < count; ++i) zero_row(matrix + i * kChunk, i, count);
  transpose(count, count, matrix, kChunk, scratch, kChunk);
  for (int64_t i = 0; i < count; ++i) add_row(count, scratch + i * kChunk, matrix + i * kChunk);
}

// dY and dX of sweep.h, without the normalisers' parts; then G.
template <typename Real>
HWY_NOINLINE void gradient_of_features(const SweepArgs<Real>& args, const Chunk& chunk,
                                       const ChunkRecord<Real>& record, BackwardTiles<Real>& tiles,
                                       State<Real> gradient) {
  const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim);
  const int64_t count = chunk.count;
  const Real *queries = tiles.stacked, *keys = tiles.k_features.values;
  const Real *grads = tiles.stacked_grads, *erased = grads + count * value_width;
  const RowTile<Real> dy{tiles.stacked_dx, width}, dx{tiles.stacked_dx + count * width, width};
  transpose(count, value_width, record.written, value_width, tiles.written_t, kChunk);
  const RowTile<const Real> written_t{tiles.written_t, kChunk};
  product_lower(count, value_width, left_rows(grads, value_width), written_t,
                RowTile<Real>{tiles.query_key_grads, kChunk});
  product_lower(count, value_width, left_rows(erased, value_width), written_t,
                RowTile<Real>{tiles.key_key_grads, kChunk});
  make_symmetric(count, tiles.key_key_grads, tiles.key_key_grads_t);

  product(2 * count, width, chunk.keys_before() ? value_width : 0, left_rows(grads, value_width),
          RowTile<const Real>{record.memory_t, width}, dy, Into::kOverwrite);
  lower_times<Real>(count, width, tiles.query_key_grads, kChunk, {keys, width}, dy, Into::kAdd);
  lower_transposed_times<Real>(count, width, tiles.query_key_grads, kChunk, {queries, width}, dx,
                               Into::kAdd);
  product(count, width, count, left_rows<Real>(tiles.key_key_grads, kChunk),
          RowTile<const Real>{keys, width}, dx, Into::kAdd);
  if (chunk.end < args.length) {
    transpose(width, value_width, gradient.memory, value_width, tiles.gradient_t, width);
    product(count, width, value_width, left_rows<Real>(record.written, value_width),
            RowTile<const Real>{tiles.gradient_t, width}, dx, Into::kAdd);
  }
  if (chunk.keys_before()) {
    product(width, value_width, 2 * count, left_transposed(queries, width),
            RowTile<const Real>{grads, value_width}, RowTile<Real>{gradient.memory, value_width},
            Into::kAdd);
  }
}

// The gates' gradients to beta and s, row by row; then dv, which is the same tile as dR.
template <typename Real>
HWY_NOINLINE void gradient_of_gates(const SweepArgs<Real>& args, const Rows& rows,
                                    int64_t first_live, const Chunk& chunk,
                                    const ChunkRecord<Real>& record, const RowSums<Real>& sums,
                                    BackwardTiles<Real>& tiles) {
  const int64_t value_width = padded(args.value_dim);
  const Real* betas = betas_of(args, rows);
  Real* dbetas = args.dbeta + (betas - args.beta);
  for (int64_t i = 0; i < chunk.count; ++i) {
    Real* row = tiles.dv + i * value_width;
    const int64_t token = chunk.begin + i;
    tiles.overlap_grads[i] = 0;
    if (rows.live(token)) {
      const Real write = dot_of_rows(value_width, row, tiles.v + i * value_width);
      const Real erase = -dot_of_rows(value_width, row, record.retrieved + i * value_width);
      dbetas[token] = gates_backward(args, betas[token], sums.overlap[i], token == first_live,
                                     write, erase, tiles.overlap_grads[i]);
    } else if (token < chunk.end) {
      dbetas[token] = 0;
    }
    scale_row(value_width, sums.gates.write[i], row, row);
  }
}

// The parts of dY and dX that go through the running sum of keys. On the way forwards: of the rows
// themselves. Then from the end: of the sum, `later` being its gradient.
template <typename Real>
HWY_NOINLINE void gradient_of_key_sums(const SweepArgs<Real>& args, const Rows& rows,
                                       const Chunk& chunk, const ChunkRecord<Real>& record,
                                       const RowSums<Real>& sums, BackwardTiles<Real>& tiles,
                                       Real* later) {
  const int64_t width = padded(args.head_dim);
  const Real *keys = tiles.k_features.values, *queries = tiles.stacked;
  Real *dy = tiles.stacked_dx, *dx = tiles.stacked_dx + chunk.count * width;
  Real* key_sums = record.key_sums;  // of no use to anybody after this
  for (int64_t i = 0; i < chunk.count; ++i) {
    const int64_t at = i * width;
    if (tiles.overlap_grads[i] != Real(0))
      add_scaled_row(width, tiles.overlap_grads[i], key_sums, dx + at);
    add_row(width, keys + at, key_sums);
    tiles.dots[i] = 0;
    if (args.normaliser != FastWeightNormaliser::kNone && rows.live(chunk.begin + i)) {
      tiles.dots[i] = divisor_slope(args, sums.row_sum[i]) / sums.normaliser[i] *
                      dot_of_rows(width, tiles.q_features.values + at, dy + at);
      add_scaled_row(width, -tiles.dots[i], key_sums, dy + at);
    }
    scale_row(width, args.far_scale / sums.normaliser[i], dy + at, dy + at);
  }
  if (args.normaliser == FastWeightNormaliser::kNone) return;
  for (int64_t i = chunk.count - 1; i >= 0; --i) {
    const int64_t at = i * width;
    add_scaled_row(width, -tiles.dots[i], queries + at, later);
    add_row(width, later, dx + at);
    add_scaled_row(width, tiles.overlap_grads[i], keys + at, later);
  }
}

template <typename Real>
void backward_sweep_of(const SweepArgs<Real>& args, const Segment& segment, Arena& arena,
                       State<Real> state, State<Real> gradient) {
  const Rows rows = rows_of(args, segment);
  const int64_t first_live = first_live_row(rows), width = padded(args.head_dim);
  const int64_t chunks = (segment.end - segment.begin + kChunk - 1) / kChunk;
  arena.reset();
  BackwardTiles<Real> tiles(args, arena);
  std::vector<ChunkRecord<Real>> records;
  for (int64_t index = 0; index < chunks; ++index) {
    records.emplace_back(args, arena);
    record_chunk(args, rows, first_live, Chunk(segment, index), tiles, state, records.back());
  }
  RowSums<Real> sums;
  for (int64_t index = chunks - 1; index >= 0; --index) {
    const Chunk chunk(segment, index);
    const ChunkRecord<Real>& record = records[index];
    load_chunk(args, rows, first_live, chunk, record, tiles, sums);
    gradient_of_writes(args, chunk, record, sums, tiles, gradient);
    gradient_of_features(args, chunk, record, tiles, gradient);
    gradient_of_gates(args, rows, first_live, chunk, record, sums, tiles);
    gradient_of_key_sums(args, rows, chunk, record, sums, tiles, gradient.key_sums);
    store_rows(args.element, tiles.dv, rows, chunk.begin, chunk.end, args.value_dim, args.dv);
    feature_rows_backward(args, chunk.count, tiles.q, tiles.q_features, tiles.stacked_dx, tiles.dx);
    store_rows(args.element, tiles.dx, rows, chunk.begin, chunk.end, args.head_dim, args.dq);
    feature_rows_backward(args, chunk.count, tiles.k, tiles.k_features,
                          tiles.stacked_dx + chunk.count * width, tiles.dx);
    store_rows(args.element, tiles.dx, rows, chunk.begin, chunk.end, args.head_dim, args.dk);
  }
}

void BackwardSweepF32(const SweepArgs<float>& args, const Segment& segment, Arena& arena,
                      State<float> state, State<float> gradient) {
  backward_sweep_of(args, segment, arena, state, gradient);
}
void BackwardSweepF64(const SweepArgs<double>& args, const Segment& segment, Arena& arena,
                      State<double> state, State<double> gradient) {
  backward_sweep_of(args, segment, arena, state, gradient);
}

}  // namespace fmmformer::fast_weight::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fmmformer::fast_weight {

HWY_EXPORT(BackwardSweepF32);
HWY_EXPORT(BackwardSweepF64);

void backward_sweep(const SweepArgs<float>& args, const Segment& segment, Arena& arena,
                    State<float> state, State<float> gradient) {
  HWY_DYNAMIC_DISPATCH(BackwardSweepF32)(args, segment, arena, state, gradient);
}
void backward_sweep(const SweepArgs<double>& args, const Segment& segment, Arena& arena,
                    State<double> state, State<double> gradient) {
  HWY_DYNAMIC_DISPATCH(BackwardSweepF64)(args, segment, arena, state, gradient);
}

}  // namespace fmmformer::fast_weight
#endif  // HWY_ONCE
