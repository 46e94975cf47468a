// SPDX-License-Identifier: Apache-2.0
// What a warp makes of a chunk before any state is known: features, the two gates of every token,
// what queries are divided by, and the two triangular solves.
#pragma once

#include "attention/fast_weight/cuda/products.cuh"

namespace fmmformer::cuda::fast_weight {

inline constexpr int kSystemStride = 20;

/// The tiles of one chunk: where each lies, in floats from the chunk's first. Forward: values
/// become Uv, solved_keys Wx. Backward: values are dO, solved_values Rv, solved_keys Rx.
template <typename S, bool kBackward>
struct ChunkTiles {
  static constexpr int kKeyTile = kChunk * S::kKeyStride, kValueTile = kChunk * S::kValueStride;
  static constexpr int kQueries = kKeyTile, kSolvedKeys = 2 * kKeyTile, kVectors = 3 * kKeyTile;
  static constexpr int kValues = kVectors + 2 * S::kKeys;
  static constexpr int kSolvedValues = kValues + (kBackward ? kValueTile : 0);
  static constexpr int kInside = kSolvedValues + kValueTile;
  static constexpr int kSystem = kInside + kChunk * kSquareStride;
  static constexpr int kNumbers = kSystem + kChunk * kSystemStride;
  static constexpr int kSize = kNumbers + 5 * kChunk;

  using Keys = Rows<S::kKeyStride>;
  float* base;
  __device__ float* keys() const { return base; }  // [16][kKeyStride]
  __device__ float* queries() const { return base + kQueries; }
  __device__ float* solved_keys() const { return base + kSolvedKeys; }
  __device__ float* sums() const { return base + kVectors; }  // [kKeys]: of the chunk's keys
  __device__ float* before() const { return base + kVectors + S::kKeys; }  // ... of all before it
  __device__ float* values() const { return base + kValues; }              // [16][kValueStride]
  __device__ float* solved_values() const { return base + kSolvedValues; }
  __device__ float* inside() const { return base + kInside; }  // A: [16][kSquareStride]
  __device__ float* system() const { return base + kSystem; }  // [16][kSystemStride]: see solve()
  __device__ float* norm() const { return base + kNumbers; }   // [16], as all below
  __device__ float* factor() const { return base + kNumbers + kChunk; }
  __device__ float* write() const { return base + kNumbers + 2 * kChunk; }
  __device__ float* erase() const { return base + kNumbers + 3 * kChunk; }
  __device__ float* overlap() const { return base + kNumbers + 4 * kChunk; }
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

/// What the unit features of a thread's last rows were multiplied by.
struct InverseSums {
  float keys = 1.f, queries = 1.f;
};
/// Part one: features.
template <typename Math, typename S, typename Tiles>
__device__ __forceinline__ InverseSums begin_chunk(const Team<S>& team, const Tiles& tiles,
                                                   const SweepArgs& args, const Place& place,
                                                   int chunk, bool queries) {
  InverseSums inverse;
  inverse.keys = make_features<Math>(team, tiles.keys(), args.k, args, place, chunk);
  if (queries)
    inverse.queries = make_features<Math>(team, tiles.queries(), args.q, args, place, chunk);
  return inverse;
}
/// ... and, after the team has met, the sum of the chunk's keys.
template <typename S, typename Tiles>
__device__ __forceinline__ void sum_chunk(const Team<S>& team, const Tiles& tiles) {
  for (int c = team.thread; c < S::kKeys; c += S::kTeamThreads) {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) sum += tiles.keys()[i * S::kKeyStride + c];
    tiles.sums()[c] = sum;
  }
}

/// Between parts one and two, with all of the group's sums at hand: what precedes this chunk.
/// `all`: the tiles of the group's first chunk.
template <typename S, typename Tiles>
__device__ __forceinline__ void sum_before(const Team<S>& team, const Tiles& tiles,
                                           const Tiles& all, const float* before) {
  for (int c = team.thread; c < S::kKeys; c += S::kTeamThreads) {
    float sum = before[c];
#pragma unroll
    for (int other = 0; other < S::kGroup - 1; ++other) {
      if (other < team.index) sum += all.sums()[other * Tiles::kSize + c];
    }
    tiles.before()[c] = sum;
  }
}
/// ... and the whole group, by all threads of a block.
template <typename S, typename Tiles>
__device__ __forceinline__ void add_group(float* before, const Tiles& all, int count) {
  for (int c = threadIdx.x; c < S::kKeys; c += S::kThreads) {
#pragma unroll
    for (int other = 0; other < S::kGroup; ++other) {
      if (other < count) before[c] += all.sums()[other * Tiles::kSize + c];
    }
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
template <bool kTransposed, typename Tiles>
__device__ __forceinline__ void store_system(const Tiles& tiles, const float (&lower)[2][4]) {
  each_pair(lower, [&](int row, int column, float first, float second) {
    const float factor = tiles.erase()[row];
    float* at = tiles.system() +
                (kTransposed ? column * kSystemStride + row : row * kSystemStride + column);
    at[0] = factor * first, at[kTransposed ? kSystemStride : 1] = factor * second;
  });
}

/// The gates and the system of a walk forwards, by one warp.
template <typename Math, typename Tiles>
__device__ __forceinline__ void make_system(const Tiles& tiles, const SweepArgs& args,
                                            const Place& place, int chunk, int first_live) {
  const typename Tiles::Keys keys{tiles.keys()};
  const int key_dim = by_sixteen(args.head_dim);
  float lower[2][4] = {};
  add_rows_product<Math>(lower, keys, keys, key_dim / 16);
  keep_lower(lower, -1);
  float overlap[2] = {1.f, 1.f};
  if (args.normaliser == FastWeightNormaliser::kOutputAndKey) {
    row_dots(overlap, keys, tiles.before(), key_dim);
    add_row_sums(overlap, lower);
  }
  if (lane_id() % 4 < 2) {  // the first two lanes of four have a row each
    const int r = lane_id() % 4, row = lane_id() / 4 + 8 * r, token = chunk * kChunk + row;
    const bool live = place.live(args, token);
    const float own = !live || token == first_live ? 1.f : r == 0 ? overlap[0] : overlap[1];
    float write, erase;
    gates_of(args, live ? beta_of(args, place, token) : 0.f, own, write, erase);
    tiles.write()[row] = write, tiles.erase()[row] = erase, tiles.overlap()[row] = own;
  }
  __syncwarp();
  store_system</*kTransposed=*/false>(tiles, lower);
}

/// The numbers of a chunk's rows that the walk forwards has left, for all walks after it.
template <typename Tiles>
__device__ __forceinline__ void load_rows(int row, const Tiles& tiles, const SweepArgs& args,
                                          const Place& place, int chunk) {
  if (row >= kChunk) return;
  const float norm = place.row_field(args, kNorm, chunk)[row];
  tiles.norm()[row] = norm;
  tiles.factor()[row] = place.live(args, chunk * kChunk + row) ? args.far_scale / norm : 0.f;
  tiles.write()[row] = place.row_field(args, kWrite, chunk)[row];
  tiles.erase()[row] = place.row_field(args, kErase, chunk)[row];
  tiles.overlap()[row] = place.row_field(args, kOverlap, chunk)[row];
}

/// What queries are divided by, and, kStored, `inside`: the lower triangle of Y X^T. By one warp.
template <typename Math, bool kStored, typename Tiles>
__device__ __forceinline__ void make_inside(const Tiles& tiles, const SweepArgs& args,
                                            const Place& place, int chunk) {
  const typename Tiles::Keys keys{tiles.keys()}, queries{tiles.queries()};
  const int key_dim = by_sixteen(args.head_dim);
  float inside[2][4] = {};
  add_rows_product<Math>(inside, queries, keys, key_dim / 16);
  keep_lower(inside, 0);
  if constexpr (kStored) store_square<Math>(tiles.inside(), inside);
  float sums[2] = {};
  const bool divides = args.normaliser != FastWeightNormaliser::kNone;
  if (divides) {
    row_dots(sums, queries, tiles.before(), key_dim);
    add_row_sums(sums, inside);
  }
  if (lane_id() % 4 < 2) {
    const int r = lane_id() % 4, row = lane_id() / 4 + 8 * r;
    const bool live = place.live(args, chunk * kChunk + row);
    const float norm = divides && live ? divisor_of(args, r == 0 ? sums[0] : sums[1]) : 1.f;
    tiles.norm()[row] = norm, tiles.factor()[row] = live ? args.far_scale / norm : 0.f;
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
/// and from X. A thread has a column of either. `values`: whether there are any.
template <typename Math, typename S, bool kTransposed, typename Tiles>
__device__ __forceinline__ void solve(const Team<S>& team, const Tiles& tiles, bool values) {
#pragma unroll 1
  for (int c = team.thread; c < S::kValues + S::kKeys; c += S::kTeamThreads) {
    const bool of_values = c < S::kValues;
    if (of_values && !values) continue;
    const int stride = of_values ? S::kValueStride : S::kKeyStride;
    const float* from = of_values ? tiles.solved_values() + c : tiles.keys() + c - S::kValues;
    float* to = of_values ? tiles.solved_values() + c : tiles.solved_keys() + c - S::kValues;
    const float* gate = of_values ? tiles.write() : tiles.erase();
    float r[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; ++i)
      r[i] = kTransposed ? from[i * stride] : gate[i] * from[i * stride];
    solve_column<kTransposed>(r, tiles.system());
    // Wx and Rx are operands, Uv and Rv are added to.
#pragma unroll
    for (int i = 0; i < kChunk; ++i) to[i * stride] = of_values ? r[i] : Math::operand(r[i]);
  }
}

}  // namespace fmmformer::cuda::fast_weight
