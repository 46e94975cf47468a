// SPDX-License-Identifier: Apache-2.0
// The walk backwards that makes dk.
#pragma once

#include "attention/fast_weight/cuda/gradients.cuh"

namespace fmmformer::cuda::fast_weight {

template <typename Math>
__device__ void prepare_keys(const GradientTiles& tiles, const SweepArgs& args, const Place& place,
                             int chunk) {
  load_chunk<Math>(tiles, args, place, chunk);
  load_transposed<Math>(tiles.solved, args.solved, args, place, chunk, tiles.erase);
  if (lane_id() < kChunk) {
    tiles.norm_gradient[lane_id()] = place.row_field(args, kNormGradient, chunk)[lane_id()];
    tiles.overlap_gradient[lane_id()] = place.row_field(args, kOverlapGradient, chunk)[lane_id()];
  }
  __syncwarp();
  const int steps = by_sixteen(args.value_dim) / 16, stride = stride_of(args.head_dim);
  const Rows written{tiles.written, kSquareStride};
  float inside[2][4] = {}, erased[2][4] = {};  // U dO^T and U E^T
  add_rows_product<Math, true, false>(inside, written, {tiles.grads, stride_of(args.value_dim)},
                                      steps);
  add_rows_product<Math, true, true>(erased, written, {tiles.solved, kSquareStride}, steps);
  keep_upper(inside, 0), keep_upper(erased, 1);
  store_square<Math>(tiles.squares[0], kSquareStride, inside);
  store_square<Math>(tiles.squares[1], kSquareStride, erased);
  for (int c = lane_id(); c < by_sixteen(args.head_dim); c += kWarpSize) {
    float part = 0.f;
#pragma unroll 4
    for (int i = 0; i < kChunk; ++i)
      part += tiles.overlap_gradient[i] * tiles.keys[i * stride + c] -
              tiles.norm_gradient[i] * tiles.queries[i * stride + c];
    tiles.sums[c] = part;
  }
}

/// results: dX without what came from the state before the chunk.
template <typename Math, int kDim>
__device__ __forceinline__ void step_keys(StateRows<Math, kDim>& state, const GradientTiles& tiles,
                                          const SweepArgs& args, int slice) {
  const int key_stride = stride_of(args.head_dim), value_stride = stride_of(args.value_dim);
  const float *keys = tiles.keys + slice * 16, *queries = tiles.queries + slice * 16;
  float result[2][4] = {};
  state.each_step([&](int s) {
    const typename Math::A g = state.operand(s);
    const typename Math::A written =
        Math::load_a_transposed(tiles.written + s * 16 * kSquareStride, kSquareStride);
    Math::multiply(result[0], written, Math::rows_as_b(g, 0));
    Math::multiply(result[1], written, Math::rows_as_b(g, 1));
  });
  add_inside<Math>(result, tiles.squares[0], queries, key_stride);
  add_inside<Math>(result, tiles.squares[1], keys, key_stride);
  store_result(tiles.results[0], key_stride, slice, result);
  state.add(Math::load_a_transposed(queries, key_stride), {tiles.grads, value_stride});
  state.template add</*kTransposed=*/true>(Math::load_a_transposed(keys, key_stride),
                                           {tiles.solved, kSquareStride});
}

/// dk of a chunk; `after`: the gradient of the key sums after it, without the group's own chunks.
template <typename Math>
__device__ void finish_keys(const GradientGroup& group, const SweepArgs& args, const Place& place,
                            int first, int count) {
  const GradientTiles tiles = group.of(args, place.warp);
  const int chunk = first + place.warp, stride = stride_of(args.head_dim),
            key_dim = by_sixteen(args.head_dim);
  const float* key_gradients =
      args.key_gradients + place.chunk_index(args, chunk) * kChunk * key_dim;
  for (int c = lane_id(); c < key_dim; c += kWarpSize) {
    float sum = tiles.before[c], gradient = group.after[c];
    for (int later = place.warp + 1; later < count; ++later)
      gradient += group.of(args, later).sums[c];
#pragma unroll 4
    for (int i = 0; i < kChunk; ++i) {
      tiles.results[0][i * stride + c] +=
          key_gradients[i * key_dim + c] + tiles.overlap_gradient[i] * sum;
      sum += tiles.keys[i * stride + c];
    }
#pragma unroll 4
    for (int i = kChunk - 1; i >= 0; --i) {
      const int at = i * stride + c;
      gradient -= tiles.norm_gradient[i] * tiles.queries[at];
      tiles.results[0][at] += gradient;
      gradient += tiles.overlap_gradient[i] * tiles.keys[at];
    }
  }
  __syncwarp();
  store_input_gradient<Math>(args.dk, args.k, args, place, chunk,
                             [&](int row, int channel, float(&df)[kPiece]) {
                               Tf32x3::load_row(df, tiles.results[0] + row * stride + channel);
                             });
}

template <typename Math, int kDim>
__device__ void walk_keys(const SweepArgs& args, const Place& place, int group_chunks) {
  const GradientGroup group(args, /*result_count=*/1);
  const int key_dim = by_sixteen(args.head_dim), slice = place.warp;
  const bool walks = slice * 16 < args.head_dim, last = place.segment + 1 == args.segments;
  for (int c = threadIdx.x; c < key_dim; c += blockDim.x) {
    group.after[c] = last || c >= args.head_dim
                         ? 0.f
                         : kept_sums(args, args.gradients.sums, place.pair, place.segment + 1)[c];
  }
  StateRows<Math, kDim> state(args.value_dim);
  if (walks && !last) {
    load_state_rows(state, args, slice,
                    kept_memory(args, args.gradients.memories, place.pair, place.segment + 1));
  }
#pragma unroll 1
  for (int end = place.end; end > place.begin; end -= group_chunks) {
    const int first = max(end - group_chunks, place.begin), count = end - first;
    const bool busy = place.warp < count;
    if (busy) prepare_keys<Math>(group.of(args, place.warp), args, place, first + place.warp);
    __syncthreads();
    if (walks) {
#pragma unroll 1
      for (int i = count - 1; i >= 0; --i) step_keys(state, group.of(args, i), args, slice);
    }
    __syncthreads();
    if (busy) finish_keys<Math>(group, args, place, first, count);
    __syncthreads();
    for (int c = threadIdx.x; c < key_dim; c += blockDim.x) {
      for (int i = 0; i < count; ++i) group.after[c] += group.of(args, i).sums[c];
    }
    __syncthreads();
  }
}

}  // namespace fmmformer::cuda::fast_weight
