// SPDX-License-Identifier: Apache-2.0
// The walk forwards that makes dq, dv and dbeta.
#pragma once

#include "attention/fast_weight/cuda/gradients.cuh"

namespace fmmformer::cuda::fast_weight {

template <typename Math>
__device__ void prepare_queries(const GradientTiles& tiles, const SweepArgs& args,
                                const Place& place, int chunk) {
  load_chunk<Math>(tiles, args, place, chunk);
  load_transposed<Math>(tiles.solved, args.solved, args, place, chunk, nullptr);
  __syncwarp();
  const int steps = by_sixteen(args.value_dim) / 16;
  const Rows written{tiles.written, kSquareStride};
  float inside[2][4] = {}, erased[2][4] = {};  // dO U^T and dR U^T
  add_rows_product<Math, false, true>(inside, {tiles.grads, stride_of(args.value_dim)}, written,
                                      steps);
  add_rows_product<Math, true, true>(erased, {tiles.solved, kSquareStride}, written, steps);
  keep_lower(inside, 0), keep_lower(erased, -1);
  store_square<Math>(tiles.squares[0], kSquareStride, inside);
  store_square<Math>(tiles.squares[1], kSquareStride, erased);
}

/// results: dY, and the same with dR in place of dO.
template <typename Math, int kDim>
__device__ __forceinline__ void step_queries(StateRows<Math, kDim>& state,
                                             const GradientTiles& tiles, const SweepArgs& args,
                                             int slice) {
  const int key_stride = stride_of(args.head_dim), value_stride = stride_of(args.value_dim);
  const float* keys = tiles.keys + slice * 16;
  float from_grads[2][4] = {}, from_solved[2][4] = {};
  state.each_step([&](int s) {
    const typename Math::A w = state.operand(s);
    const typename Math::B b[2] = {Math::rows_as_b(w, 0), Math::rows_as_b(w, 1)};
    const typename Math::A grads = Math::load_a(tiles.grads + s * 16, value_stride);
    Math::multiply(from_grads[0], grads, b[0]), Math::multiply(from_grads[1], grads, b[1]);
    const typename Math::A solved =
        Math::load_a_transposed(tiles.solved + s * 16 * kSquareStride, kSquareStride);
    Math::multiply(from_solved[0], solved, b[0]), Math::multiply(from_solved[1], solved, b[1]);
  });
  add_inside<Math>(from_grads, tiles.squares[0], keys, key_stride);
  add_inside<Math>(from_solved, tiles.squares[1], keys, key_stride);
  store_result(tiles.results[0], key_stride, slice, from_grads);
  store_result(tiles.results[1], key_stride, slice, from_solved);
  state.template add</*kTransposed=*/true>(Math::load_a_transposed(keys, key_stride),
                                           {tiles.written, kSquareStride});
}

__device__ inline void store_beta_gradient(const SweepArgs& args, const Place& place, int token,
                                           float value) {
  const int64_t index = (int64_t(place.b) * args.length + token) * args.heads + place.h;
  switch (args.beta.type) {
    case 0:
      return store_element(args.dbeta, index, Element::kFloat32, value);
    case 1:
      return store_element(args.dbeta, index, Element::kBFloat16, value);
    case 2:
      return store_element(args.dbeta, index, Element::kFloat16, value);
    default:
      static_cast<double*>(args.dbeta)[index] = value;
  }
}

/// dots: <y, dY>, <x, result 1> and <dR, v> of every row; writes dv on the way.
__device__ inline void dot_rows(const GradientTiles& tiles, const SweepArgs& args,
                                const Place& place, int chunk) {
  const int stride = stride_of(args.head_dim);
  each_piece(args.head_dim, [&](int row, int channel, int across) {
    float with_queries = 0.f, with_keys = 0.f;
    if (channel < by_sixteen(args.head_dim)) {
      const int at = row * stride + channel;
#pragma unroll
      for (int i = 0; i < kPiece; ++i) {
        with_queries += tiles.queries[at + i] * tiles.results[0][at + i];
        with_keys += tiles.keys[at + i] * tiles.results[1][at + i];
      }
    }
    with_queries = sum_across(with_queries, across), with_keys = sum_across(with_keys, across);
    if (channel == 0) tiles.dots[0][row] = with_queries, tiles.dots[1][row] = with_keys;
  });
  each_piece(args.value_dim, [&](int row, int channel, int across) {
    const int token = chunk * kChunk + row;
    const bool live = place.live(args, token), inside = channel < args.value_dim;
    float v[kPiece], solved[kPiece] = {}, dot = 0.f;
    load_piece(v, args.v, live ? place.element(args.v, token) : 0, channel, args.value_dim,
               args.element, live);
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      if (live && channel + i < args.value_dim) {
        solved[i] = tiles.solved[(channel + i) * kSquareStride + row];
        dot += solved[i] * v[i];
        solved[i] *= tiles.write[row];
      }
    }
    dot = sum_across(dot, across);
    if (channel == 0) tiles.dots[2][row] = dot;
    if (token < args.length && inside)
      store_piece(solved, args.dv, place.element(args.dv, token), channel, args.value_dim,
                  args.element);
  });
}

/// From the dots to the gradients of what a row is divided by, of its overlap and of its beta.
__device__ inline void gradient_of_row(const GradientTiles& tiles, const SweepArgs& args,
                                       const Place& place, int chunk, int row, int first_live) {
  const int token = chunk * kChunk + row;
  float of_norm = 0.f, of_overlap = 0.f, of_beta = 0.f;
  if (place.live(args, token)) {
    const float write = tiles.dots[2][row], erase = -tiles.dots[1][row];
    of_beta = write + erase;
    if (args.normaliser != FastWeightNormaliser::kNone) {
      const float norm = tiles.norm[row];
      of_norm = divisor_slope(args, norm) * tiles.dots[0][row] / norm;
    }
    if (args.normaliser == FastWeightNormaliser::kOutputAndKey) {
      const float norm = divisor_of(args, tiles.overlap[row]), share = tiles.overlap[row] / norm;
      const float slope = share * divisor_slope(args, norm), beta = beta_of(args, place, token);
      if (token != first_live)
        of_overlap = beta * (write * (1.f - slope) + erase * (1.f - 2.f * slope) / norm) / norm;
      of_beta = share * (write + erase / norm);
    }
  }
  tiles.norm_gradient[row] = of_norm, tiles.overlap_gradient[row] = of_overlap;
  place.row_field(args, kNormGradient, chunk)[row] = of_norm;
  place.row_field(args, kOverlapGradient, chunk)[row] = of_overlap;
  if (token < args.length) store_beta_gradient(args, place, token, of_beta);
}

/// dq, dv and dbeta of a chunk, and what is left for the key sweep.
template <typename Math>
__device__ void finish_queries(const GradientTiles& tiles, const SweepArgs& args,
                               const Place& place, int chunk, int first_live) {
  const int stride = stride_of(args.head_dim), key_dim = by_sixteen(args.head_dim);
  dot_rows(tiles, args, place, chunk);
  __syncwarp();
  if (lane_id() < kChunk) gradient_of_row(tiles, args, place, chunk, lane_id(), first_live);
  __syncwarp();
  float* key_gradients = args.key_gradients + place.chunk_index(args, chunk) * kChunk * key_dim;
  for (int c = lane_id(); c < key_dim; c += kWarpSize) {
    float sum = tiles.before[c], part = 0.f;
#pragma unroll 4
    for (int i = 0; i < kChunk; ++i) {
      const int at = i * stride + c;
      sum += tiles.keys[at];
      part +=
          tiles.overlap_gradient[i] * tiles.keys[at] - tiles.norm_gradient[i] * tiles.queries[at];
      tiles.results[0][at] -= tiles.norm_gradient[i] * sum;
      key_gradients[i * key_dim + c] = -tiles.erase[i] * tiles.results[1][at];
    }
    tiles.sums[c] = part;
  }
  __syncwarp();
  store_input_gradient<Math>(args.dq, args.q, args, place, chunk,
                             [&](int row, int channel, float(&df)[kPiece]) {
                               Tf32x3::load_row(df, tiles.results[0] + row * stride + channel);
                             });
}

template <typename Math, int kDim>
__device__ void walk_queries(const SweepArgs& args, const Place& place, int group_chunks) {
  const GradientGroup group(args, /*result_count=*/2);
  const int first_live = first_live_token(args, place), slice = place.warp;
  const bool walks = slice * 16 < args.head_dim;
  const int key_dim = by_sixteen(args.head_dim);
  for (int c = threadIdx.x; c < key_dim; c += blockDim.x) group.after[c] = 0.f;
  StateRows<Math, kDim> state(args.value_dim);
  if (walks && place.segment > 0) {
    load_state_rows(state, args, slice,
                    kept_memory(args, args.states.memories, place.pair, place.segment - 1));
  }
#pragma unroll 1
  for (int first = place.begin; first < place.end; first += group_chunks) {
    const int count = min(group_chunks, place.end - first);
    const bool busy = place.warp < count;
    if (busy) prepare_queries<Math>(group.of(args, place.warp), args, place, first + place.warp);
    __syncthreads();
    if (walks) {
#pragma unroll 1
      for (int i = 0; i < count; ++i) step_queries(state, group.of(args, i), args, slice);
    }
    __syncthreads();
    if (busy) {
      finish_queries<Math>(group.of(args, place.warp), args, place, first + place.warp, first_live);
    }
    __syncthreads();
    for (int c = threadIdx.x; c < key_dim; c += blockDim.x) {
      for (int i = 0; i < count; ++i) group.after[c] += group.of(args, i).sums[c];
    }
    // The next group writes its sums only after another barrier.
  }
  if (!args.gradients.sums) return;
  __syncthreads();
  for (int c = threadIdx.x; c < args.head_dim; c += blockDim.x)
    kept_sums(args, args.gradients.sums, place.pair, place.segment)[c] = group.after[c];
}

}  // namespace fmmformer::cuda::fast_weight
