// SPDX-License-Identifier: Apache-2.0
// What the last two sweeps of backward share. With U and dR of every token at hand, the gradients
// of queries and keys are products with the state before a chunk, and after it. A warp has sixteen
// channels of the keys: rows of W and G.
#pragma once

#include "attention/fast_weight/cuda/walks.cuh"

namespace fmmformer::cuda::fast_weight {

/// The tiles of one chunk.
struct GradientTiles {
  float *keys, *queries;    // [16][stride_of(D)]
  float* results[2];        // likewise: what the walk finds
  float* grads;             // dO: [16][stride_of(Dv)]
  float *written, *solved;  // U^T; dR^T or E^T: [Dv][kSquareStride]
  float* squares[2];        // [16][kSquareStride]
  float *norm, *write, *erase, *overlap, *norm_gradient, *overlap_gradient;  // [16]
  float* dots[3];                                                            // [16]
  float* before;  // [D]: the sum of all keys before the chunk
  float* sums;    // [D]: the chunk's part of the key sums' gradient
  int64_t bytes;

  __host__ __device__ GradientTiles(const SweepArgs& args, unsigned char* base, int result_count) {
    const int key_tile = kChunk * stride_of(args.head_dim), key_dim = by_sixteen(args.head_dim);
    const int value_dim = by_sixteen(args.value_dim);
    Carver carver(base);
    keys = carver.take<float>(key_tile), queries = carver.take<float>(key_tile);
    for (int i = 0; i < result_count; ++i) results[i] = carver.take<float>(key_tile);
    grads = carver.take<float>(kChunk * stride_of(args.value_dim));
    written = carver.take<float>(value_dim * kSquareStride);
    solved = carver.take<float>(value_dim * kSquareStride);
    for (float*& square : squares) square = carver.take<float>(kChunk * kSquareStride);
    for (float** field : {&norm, &write, &erase, &overlap, &norm_gradient, &overlap_gradient})
      *field = carver.take<float>(kChunk);
    for (float*& dot : dots) dot = carver.take<float>(kChunk);
    before = carver.take<float>(key_dim), sums = carver.take<float>(key_dim);
    bytes = carver.used();
  }
};

/// A thread block's shared memory: the gradient of the key sums, then the group's chunks.
struct GradientGroup {
  float* after;
  unsigned char* chunks;
  int64_t chunk_bytes;
  int result_count;

  __device__ GradientGroup(const SweepArgs& args, int result_count)
      : after(reinterpret_cast<float*>(dynamic_shared_memory)),
        chunks(dynamic_shared_memory + by_sixteen(args.head_dim) * sizeof(float)),
        chunk_bytes(GradientTiles(args, nullptr, result_count).bytes),
        result_count(result_count) {}
  __device__ GradientTiles of(const SweepArgs& args, int index) const {
    return GradientTiles(args, chunks + index * chunk_bytes, result_count);
  }
};
inline int64_t gradient_bytes(const SweepArgs& args, int group, int result_count) {
  return by_sixteen(args.head_dim) * sizeof(float) +
         group * GradientTiles(args, nullptr, result_count).bytes;
}

/// A chunk of `written` or `solved`, its columns times factors[token] where there are any.
template <typename Math>
__device__ __forceinline__ void load_transposed(float* tile, const float* from,
                                                const SweepArgs& args, const Place& place,
                                                int chunk, const float* factors) {
  const int count = by_sixteen(args.value_dim) * kChunk;
  from += place.chunk_index(args, chunk) * count;
  for (int i = lane_id() * 4; i < count; i += kWarpSize * 4) {
    float4 four = *reinterpret_cast<const float4*>(from + i);
    if (factors) {
      const float* factor = factors + i % kChunk;
      four.x = Math::rounded(-factor[0] * four.x), four.y = Math::rounded(-factor[1] * four.y);
      four.z = Math::rounded(-factor[2] * four.z), four.w = Math::rounded(-factor[3] * four.w);
    }
    *reinterpret_cast<float4*>(tile + i / kChunk * kSquareStride + i % kChunk) = four;
  }
}

/// Everything about a chunk that both sweeps begin with. dots[0] is used for dO's factors.
template <typename Math>
__device__ void load_chunk(const GradientTiles& tiles, const SweepArgs& args, const Place& place,
                           int chunk) {
  const int key_stride = stride_of(args.head_dim), row = lane_id();
  make_features<Math>(tiles.keys, key_stride, args.k, args, place, chunk);
  make_features<Math>(tiles.queries, key_stride, args.q, args, place, chunk);
  if (row < kChunk) {
    const float norm = place.row_field(args, kNorm, chunk)[row];
    tiles.norm[row] = norm;
    tiles.dots[0][row] = place.live(args, chunk * kChunk + row) ? args.far_scale / norm : 0.f;
    tiles.write[row] = place.row_field(args, kWrite, chunk)[row];
    tiles.erase[row] = place.row_field(args, kErase, chunk)[row];
    tiles.overlap[row] = place.row_field(args, kOverlap, chunk)[row];
  }
  const int key_dim = by_sixteen(args.head_dim);
  const float* before = args.sums_before + place.chunk_index(args, chunk) * key_dim;
  for (int c = lane_id(); c < key_dim; c += kWarpSize) tiles.before[c] = before[c];
  __syncwarp();
  load_tile<Math>(tiles.grads, stride_of(args.value_dim), args.grad_out, args.value_dim, args,
                  place, chunk, tiles.dots[0]);
  load_transposed<Math>(tiles.written, args.written, args, place, chunk, nullptr);
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

__device__ __forceinline__ void store_result(float* tile, int stride, int slice,
                                             const float (&c)[2][4]) {
  each_pair(c, [&](int row, int column, float first, float second) {
    *reinterpret_cast<float2*>(tile + row * stride + slice * 16 + column) =
        make_float2(first, second);
  });
}
/// c += square rows[.., sixteen channels].
template <typename Math>
__device__ __forceinline__ void add_inside(float (&c)[2][4], const float* square, const float* rows,
                                           int stride) {
  const typename Math::A a = Math::load_a(square, kSquareStride);
  typename Math::B b[2];
  Math::load_b_transposed(b, rows, stride);
  Math::multiply(c[0], a, b[0]);
  Math::multiply(c[1], a, b[1]);
}

}  // namespace fmmformer::cuda::fast_weight
