// SPDX-License-Identifier: Apache-2.0
// What the last two sweeps of backward share. With U and dR of every token at hand, the gradients
// of queries and keys are products with the state before a chunk, and after it. A warp has sixteen
// channels of the keys: rows of W and G.
#pragma once

#include "attention/fast_weight/cuda/walks.cuh"

namespace fmmformer::cuda::fast_weight {

/// A warp for sixteen channels of the keys, which prepare a chunk together. Narrow heads take
/// several chunks at a time; at sixteen channels no more than three: six blocks then share a
/// multiprocessor.
template <int kDim>
using GradientShape = Shape<kDim, kDim, kDim / 16,
                            (kDim == 16   ? 3
                             : kDim == 32 ? 4
                                          : kDim / 16)>;

/// The tiles of one chunk: where each lies, in floats from the chunk's first.
template <typename S, int kResults>
struct GradientTiles {
  static constexpr int kKeyTile = kChunk * S::kKeyStride, kSquare = kChunk * kSquareStride;
  static constexpr int kQueries = kKeyTile, kFirstResult = 2 * kKeyTile;
  static constexpr int kGrads = kFirstResult + kResults * kKeyTile;
  static constexpr int kWritten = kGrads + kChunk * S::kValueStride;
  static constexpr int kSolved = kWritten + S::kValues * kSquareStride;
  static constexpr int kSquares = kSolved + S::kValues * kSquareStride;
  static constexpr int kVectors = kSquares + 2 * kSquare;
  static constexpr int kNumbers = kVectors + 2 * S::kKeys;
  static constexpr int kSize = kNumbers + 9 * kChunk;

  using Keys = Rows<S::kKeyStride>;
  using Values = Rows<S::kValueStride>;
  using Transposed = Rows<kSquareStride, true>;  // [channels][16]
  float* base;
  __device__ float* keys() const { return base; }  // [16][kKeyStride]
  __device__ float* queries() const { return base + kQueries; }
  __device__ float* result(int i) const { return base + kFirstResult + i * kKeyTile; }
  __device__ float* grads() const { return base + kGrads; }      // dO: [16][kValueStride]
  __device__ float* written() const { return base + kWritten; }  // U^T: [kValues][kSquareStride]
  __device__ float* solved() const { return base + kSolved; }    // dR^T, or E^T
  __device__ float* square(int i) const { return base + kSquares + i * kSquare; }
  __device__ float* before() const { return base + kVectors; }  // [kKeys]: all keys before, summed
  __device__ float* sums() const { return base + kVectors + S::kKeys; }  // the key sums' gradient
  __device__ float* number(RowField field) const { return base + kNumbers + field * kChunk; }
  __device__ float* dot(int i) const { return base + kNumbers + (kRowFields + i) * kChunk; }
};

/// A thread block's shared memory: the gradient of the key sums, then the group's chunks.
template <typename S, int kResults>
struct GradientGroup {
  using Tiles = GradientTiles<S, kResults>;
  static constexpr int kBytes = (S::kKeys + S::kGroup * Tiles::kSize) * sizeof(float);

  static __device__ float* after() { return reinterpret_cast<float*>(dynamic_shared_memory); }
  static __device__ Tiles of(int index) { return {after() + S::kKeys + index * Tiles::kSize}; }
  /// after += the group's parts, by all threads of a block.
  static __device__ void add(int count) {
    for (int c = threadIdx.x; c < S::kKeys; c += S::kThreads) {
#pragma unroll
      for (int i = 0; i < S::kGroup; ++i) {
        if (i < count) after()[c] += of(i).sums()[c];
      }
    }
  }
};

/// A chunk of `written` or `solved`; kErased: its columns times -erase.
template <typename Math, typename S, bool kErased>
__device__ __forceinline__ void load_transposed(const Team<S>& team, float* tile, const float* from,
                                                const SweepArgs& args, const Place& place,
                                                int chunk, const float* erase) {
  const int count = by_sixteen(args.value_dim) * kChunk;
  from += place.chunk_index(args, chunk) * count;
  const int column = team.thread * 4 % kChunk;
  for (int i = team.thread * 4; i < count; i += S::kTeamThreads * 4) {
    float4 four = *reinterpret_cast<const float4*>(from + i);
    if constexpr (kErased) {
      four.x = Math::rounded(-erase[column] * four.x);
      four.y = Math::rounded(-erase[column + 1] * four.y);
      four.z = Math::rounded(-erase[column + 2] * four.z);
      four.w = Math::rounded(-erase[column + 3] * four.w);
    }
    *reinterpret_cast<float4*>(tile + i / kChunk * kSquareStride + column) = four;
  }
}

/// Everything about a chunk that both sweeps begin with; `fields`: how many numbers a row has by
/// now. Ends with the team's meeting. dot 0 holds dO's factors meanwhile.
template <typename Math, bool kErased, typename S, typename Tiles>
__device__ __forceinline__ void load_chunk(const Team<S>& team, const Tiles& tiles,
                                           const SweepArgs& args, const Place& place, int chunk,
                                           int fields) {
  for (int i = team.thread; i < fields * kChunk; i += S::kTeamThreads) {
    const int row = i % kChunk;
    const float number = place.row_field(args, static_cast<RowField>(i / kChunk), chunk)[row];
    tiles.number(kNorm)[i] = number;
    if (i < kChunk)
      tiles.dot(0)[row] = place.live(args, chunk * kChunk + row) ? args.far_scale / number : 0.f;
  }
  const int key_dim = by_sixteen(args.head_dim);
  const float* before = args.sums_before + place.chunk_index(args, chunk) * key_dim;
  for (int c = team.thread; c < S::kKeys; c += S::kTeamThreads)
    tiles.before()[c] = c < key_dim ? before[c] : 0.f;
  load_transposed<Math, S, false>(team, tiles.written(), args.written, args, place, chunk, nullptr);
  if (!kErased)
    load_transposed<Math, S, false>(team, tiles.solved(), args.solved, args, place, chunk, nullptr);
  begin_chunk<Math>(team, tiles, args, place, chunk, /*queries=*/true);
  team.wait();
  if (kErased)
    load_transposed<Math, S, true>(team, tiles.solved(), args.solved, args, place, chunk,
                                   tiles.number(kErase));
  load_tile<Math, S, S::kValues>(team, tiles.grads(), args.grad_out, args.value_dim, args, place,
                                 chunk, tiles.dot(0));
  team.wait();
}

/// The state of a warp's sixteen rows from memory [D, Dv].
template <typename State>
__device__ void load_state_rows(State& state, const SweepArgs& args, int slice,
                                const float* memory) {
  state.each([&](int row, int column, float& number) {
    const int channel = slice * 16 + row;
    if (channel < args.head_dim && column < args.value_dim)
      number = memory[int64_t(channel) * args.value_dim + column];
  });
}

template <typename S>
__device__ __forceinline__ void store_result(float* tile, int slice, const float (&c)[2][4]) {
  each_pair(c, [&](int row, int column, float first, float second) {
    *reinterpret_cast<float2*>(tile + row * S::kKeyStride + slice * 16 + column) =
        make_float2(first, second);
  });
}
/// c += square rows[.., sixteen channels].
template <typename Math, typename S>
__device__ __forceinline__ void add_inside(float (&c)[2][4], const float* square,
                                           const float* rows) {
  const typename Math::A a = Math::load_a(square, kSquareStride);
  typename Math::B b[2];
  Math::load_b_transposed(b, rows, S::kKeyStride);
  Math::multiply(c[0], a, b[0]);
  Math::multiply(c[1], a, b[1]);
}

}  // namespace fmmformer::cuda::fast_weight
