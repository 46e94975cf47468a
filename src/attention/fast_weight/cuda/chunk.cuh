// SPDX-License-Identifier: Apache-2.0
// What a warp makes of a chunk before any state is known: features, the two gates of every token,
// what queries are divided by, and the two triangular solves.
#pragma once

#include "attention/fast_weight/cuda/products.cuh"
#include "attention/fmm/cuda/shared_memory.cuh"

namespace fmmformer::cuda::fast_weight {

inline constexpr int kValueBlock = 64;  // channels of v that a thread block takes
inline constexpr int kSystemStride = 20;

/// The tiles of one chunk. Forward: values become Uv, solved_keys Wx. Backward: values are dO,
/// solved_values Rv, solved_keys Rx.
struct ChunkTiles {
  float *keys, *queries, *solved_keys;             // [16][stride_of(D)]
  float *values, *solved_values;                   // [16][stride_of(kValueBlock or Dv)]
  float* inside;                                   // A: [16][kSquareStride]
  float* system;                                   // [16][kSystemStride], see solve()
  float *norm, *factor, *write, *erase, *overlap;  // [16]
  float* sums;                                     // [D]: of the chunk's keys
  float* before;                                   // [D]: of all keys before the chunk
  int64_t bytes;

  __host__ __device__ ChunkTiles(const SweepArgs& args, unsigned char* base, bool backward) {
    const int key_tile = kChunk * stride_of(args.head_dim), key_dim = by_sixteen(args.head_dim);
    const int value_tile = kChunk * value_stride(args);
    Carver carver(base);
    keys = carver.take<float>(key_tile), queries = carver.take<float>(key_tile);
    solved_keys = carver.take<float>(key_tile);
    values = carver.take<float>(value_tile);
    solved_values = backward ? carver.take<float>(value_tile) : values;
    inside = carver.take<float>(kChunk * kSquareStride);
    system = carver.take<float>(kChunk * kSystemStride);
    norm = carver.take<float>(kChunk), factor = carver.take<float>(kChunk);
    write = carver.take<float>(kChunk), erase = carver.take<float>(kChunk);
    overlap = carver.take<float>(kChunk);
    sums = carver.take<float>(key_dim), before = carver.take<float>(key_dim);
    bytes = carver.used();
  }
  static __host__ __device__ int value_stride(const SweepArgs& args) {
    return stride_of(args.value_dim < kValueBlock ? args.value_dim : kValueBlock);
  }
};

/// The first real token of the block's batch entry, whose key has nothing to be compared with.
/// Called by all threads of a block.
__device__ inline int first_live_token(const SweepArgs& args, const Place& place) {
  if (!args.token_mask || args.normaliser != FastWeightNormaliser::kOutputAndKey) return 0;
  __shared__ int first;
  if (threadIdx.x == 0) first = args.length;
  __syncthreads();
  for (int base = 0; base < args.length; base += blockDim.x) {
    const int token = base + static_cast<int>(threadIdx.x);
    const bool live = token < args.length && place.live(args, token);
    if (live) atomicMin(&first, token);
    if (__syncthreads_or(live)) break;
  }
  __syncthreads();
  return first;
}

/// Part one: features, and the sum of the chunk's keys.
template <typename Math>
__device__ void begin_chunk(const ChunkTiles& tiles, const SweepArgs& args, const Place& place,
                            int chunk, bool queries) {
  const int stride = stride_of(args.head_dim);
  make_features<Math>(tiles.keys, stride, args.k, args, place, chunk);
  if (queries) make_features<Math>(tiles.queries, stride, args.q, args, place, chunk);
  __syncwarp();
  for (int c = lane_id(); c < by_sixteen(args.head_dim); c += kWarpSize) {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) sum += tiles.keys[i * stride + c];
    tiles.sums[c] = sum;
  }
}

/// Between parts one and two, with all of the group's sums at hand: what precedes this chunk.
template <typename TilesOf>
__device__ void sum_before(const ChunkTiles& tiles, const SweepArgs& args, const float* before,
                           int index, const TilesOf& tiles_of) {
  for (int c = lane_id(); c < by_sixteen(args.head_dim); c += kWarpSize) {
    float sum = before[c];
    for (int other = 0; other < index; ++other) sum += tiles_of(other).sums[c];
    tiles.before[c] = sum;
  }
  __syncwarp();
}
/// ... and the whole group, by all threads of a block.
template <typename TilesOf>
__device__ void add_group(float* before, const SweepArgs& args, int count,
                          const TilesOf& tiles_of) {
  for (int c = threadIdx.x; c < by_sixteen(args.head_dim); c += blockDim.x) {
    for (int other = 0; other < count; ++other) before[c] += tiles_of(other).sums[c];
  }
}

/// write = beta s / n, erase = beta s / n^2, n = s + eps; without a key normaliser both are beta.
__device__ __forceinline__ void gates_of(const SweepArgs& args, float beta, float overlap,
                                         float& write, float& erase) {
  write = erase = beta;
  if (args.normaliser != FastWeightNormaliser::kOutputAndKey) return;
  const float norm = divisor_of(args, overlap);
  write = beta * overlap / norm;
  erase = write / norm;
}

/// `system`: erase L, as [row][column] or, kTransposed, as [column][row]. The gates are there.
template <bool kTransposed>
__device__ __forceinline__ void store_system(const ChunkTiles& tiles, const float (&lower)[2][4]) {
  each_pair(lower, [&](int row, int column, float first, float second) {
    const float factor = tiles.erase[row];
    float* at =
        tiles.system + (kTransposed ? column * kSystemStride + row : row * kSystemStride + column);
    at[0] = factor * first, at[kTransposed ? kSystemStride : 1] = factor * second;
  });
}

/// The gates and the system of a walk forwards.
template <typename Math>
__device__ void make_system(const ChunkTiles& tiles, const SweepArgs& args, const Place& place,
                            int chunk, int first_live) {
  const Rows keys{tiles.keys, stride_of(args.head_dim)};
  const int key_dim = by_sixteen(args.head_dim), g = lane_id() / 4;
  float lower[2][4] = {};
  add_rows_product<Math>(lower, keys, keys, key_dim / 16);
  keep_lower(lower, -1);
  float overlap[2] = {1.f, 1.f};
  if (args.normaliser == FastWeightNormaliser::kOutputAndKey) {
    row_dots(overlap, keys, tiles.before, key_dim);
    add_row_sums(overlap, lower);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = g + 8 * r, token = chunk * kChunk + row;
    const bool live = place.live(args, token);
    if (!live || token == first_live) overlap[r] = 1.f;
    float write, erase;
    gates_of(args, live ? beta_of(args, place, token) : 0.f, overlap[r], write, erase);
    if (lane_id() % 4 == 0)
      tiles.write[row] = write, tiles.erase[row] = erase, tiles.overlap[row] = overlap[r];
  }
  __syncwarp();
  store_system</*kTransposed=*/false>(tiles, lower);
}

/// The numbers of a chunk's rows that the walk forwards has left, for all walks after it.
__device__ inline void load_rows(const ChunkTiles& tiles, const SweepArgs& args, const Place& place,
                                 int chunk) {
  const int row = lane_id();
  if (row >= kChunk) return;
  const float norm = place.row_field(args, kNorm, chunk)[row];
  tiles.norm[row] = norm;
  tiles.factor[row] = place.live(args, chunk * kChunk + row) ? args.far_scale / norm : 0.f;
  tiles.write[row] = place.row_field(args, kWrite, chunk)[row];
  tiles.erase[row] = place.row_field(args, kErase, chunk)[row];
  tiles.overlap[row] = place.row_field(args, kOverlap, chunk)[row];
}

/// What queries are divided by, and `inside`: the lower triangle of Y X^T.
template <typename Math>
__device__ void make_inside(const ChunkTiles& tiles, const SweepArgs& args, const Place& place,
                            int chunk) {
  const int stride = stride_of(args.head_dim), key_dim = by_sixteen(args.head_dim);
  float inside[2][4] = {};
  add_rows_product<Math>(inside, {tiles.queries, stride}, {tiles.keys, stride}, key_dim / 16);
  keep_lower(inside, 0);
  store_square<Math>(tiles.inside, kSquareStride, inside);
  float sums[2] = {};
  const bool divides = args.normaliser != FastWeightNormaliser::kNone;
  if (divides) {
    row_dots(sums, {tiles.queries, stride}, tiles.before, key_dim);
    add_row_sums(sums, inside);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = lane_id() / 4 + 8 * r;
    const bool live = place.live(args, chunk * kChunk + row);
    const float norm = divides && live ? divisor_of(args, sums[r]) : 1.f;
    if (lane_id() % 4 == 0)
      tiles.norm[row] = norm, tiles.factor[row] = live ? args.far_scale / norm : 0.f;
  }
}

/// Solves (I + system) r = b for a column of sixteen rows, b in place; system is strictly lower,
/// or, kTransposed, strictly upper.
template <bool kTransposed>
__device__ __forceinline__ void solve_column(float (&r)[kChunk], const float* system) {
#pragma unroll
  for (int step = 1; step < kChunk; ++step) {
    const int i = kTransposed ? kChunk - 1 - step : step;
    float row[kChunk];
#pragma unroll
    for (int j = 0; j < kChunk; j += 4) {
      if (kTransposed ? j + 3 <= i : j >= i) continue;
      const float4 four = *reinterpret_cast<const float4*>(system + i * kSystemStride + j);
      row[j] = four.x, row[j + 1] = four.y, row[j + 2] = four.z, row[j + 3] = four.w;
    }
#pragma unroll
    for (int other = 0; other < step; ++other) {
      const int j = kTransposed ? kChunk - 1 - other : other;
      r[i] -= row[j] * r[j];
    }
  }
}

/// Uv and Wx from V and X and their gates; or, kTransposed, Rv and Rx from what lies in their place
/// and from X. A lane has a column of either. `channels`: of v; 0 for none.
template <typename Math, bool kTransposed>
__device__ void solve(const ChunkTiles& tiles, const SweepArgs& args, int channels) {
  const int value_columns = by_sixteen(channels);
  const int columns = value_columns + by_sixteen(args.head_dim);
  const int value_stride = ChunkTiles::value_stride(args), key_stride = stride_of(args.head_dim);
#pragma unroll 1
  for (int c = lane_id(); c < columns; c += kWarpSize) {
    const bool of_values = c < value_columns;
    const int stride = of_values ? value_stride : key_stride;
    const float* from = of_values ? tiles.solved_values + c : tiles.keys + c - value_columns;
    float* to = of_values ? tiles.solved_values + c : tiles.solved_keys + c - value_columns;
    const float* gate = of_values ? tiles.write : tiles.erase;
    float r[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; ++i)
      r[i] = kTransposed ? from[i * stride] : gate[i] * from[i * stride];
    solve_column<kTransposed>(r, tiles.system);
    // Wx and Rx are operands, Uv and Rv are added to.
#pragma unroll
    for (int i = 0; i < kChunk; ++i) to[i * stride] = of_values ? r[i] : Math::rounded(r[i]);
  }
}

}  // namespace fmmformer::cuda::fast_weight
