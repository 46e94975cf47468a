// SPDX-License-Identifier: Apache-2.0
// The last two sweeps of backward: with U and dR of every token at hand, the gradients of queries
// and keys are products with the state before a chunk, and after it. A warp has sixteen channels of
// the keys: rows of W and G.
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

// --- queries
// --------------------------------------------------------------------------------------

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

// --- keys
// -----------------------------------------------------------------------------------------

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
