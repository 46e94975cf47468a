// SPDX-License-Identifier: Apache-2.0
// The walks along rows of W^T and G^T, in which every step depends on the one before. A thread
// block has up to kValueBlock channels of v, or of the identity, a warp for sixteen of them.
#pragma once

#include "attention/fast_weight/cuda/chunk.cuh"

namespace fmmformer::cuda::fast_weight {

extern __shared__ __align__(16) unsigned char dynamic_shared_memory[];

enum class Walk {
  kOutput,      // forwards: writes out
  kWritten,     // forwards, for backward: writes U
  kTransition,  // either way: the segment's T and B
  kSolved,      // backwards: writes dR and the rows
};

/// A block's part of the channels: of v, or (`identity`) of the keys.
struct Channels {
  bool identity;
  int first, count;

  __device__ Channels(const SweepArgs& args, int block) {
    const int blocks = (args.value_dim + kValueBlock - 1) / kValueBlock;
    identity = block >= blocks;
    first = (identity ? block - blocks : block) * kValueBlock;
    count = min((identity ? args.head_dim : args.value_dim) - first, kValueBlock);
  }
};

/// A thread block's shared memory: the key sums before the group, then the group's chunks.
struct GroupTiles {
  float* before;
  unsigned char* chunks;
  int64_t chunk_bytes;
  bool backward;

  __device__ GroupTiles(const SweepArgs& args, bool backward)
      : before(reinterpret_cast<float*>(dynamic_shared_memory)),
        chunks(dynamic_shared_memory + by_sixteen(args.head_dim) * sizeof(float)),
        chunk_bytes(ChunkTiles(args, nullptr, backward).bytes),
        backward(backward) {}
  __device__ ChunkTiles of(const SweepArgs& args, int index) const {
    return ChunkTiles(args, chunks + index * chunk_bytes, backward);
  }
};
inline int64_t group_bytes(const SweepArgs& args, int group, bool backward) {
  return by_sixteen(args.head_dim) * sizeof(float) +
         group * ChunkTiles(args, nullptr, backward).bytes;
}

/// The state of a warp's sixteen channels from memory [D, row_length] (none: zeros, or ones on the
/// diagonal), and back.
template <typename State>
__device__ void load_columns(State& state, const SweepArgs& args, const Channels& channels,
                             int slice, const float* memory) {
  if (!memory && !channels.identity) return;
  state.each([&](int row, int column, float& number) {
    const int channel = channels.first + slice * 16 + row;
    if (channels.identity) {
      number = channel == column ? 1.f : 0.f;
    } else if (channel < args.value_dim && column < args.head_dim) {
      number = memory[int64_t(column) * args.value_dim + channel];
    }
  });
}
template <typename State>
__device__ void store_columns(State& state, const SweepArgs& args, const Channels& channels,
                              int slice, float* memory) {
  state.each([&](int row, int column, const float& number) {
    const int channel = channels.first + slice * 16 + row;
    if (column >= args.head_dim) return;
    if (channels.identity) {  // T^T: join_states reads it row by row
      if (channel < args.head_dim) memory[int64_t(channel) * args.head_dim + column] = number;
    } else if (channel < args.value_dim) {
      memory[int64_t(column) * args.value_dim + channel] = number;
    }
  });
}

/// kept[pair][index] of states.
__device__ __forceinline__ float* kept_memory(const SweepArgs& args, float* memories, int64_t pair,
                                              int index) {
  return memories + (pair * args.kept_states + index) * args.head_dim * args.value_dim;
}
__device__ __forceinline__ float* kept_sums(const SweepArgs& args, float* sums, int64_t pair,
                                            int index) {
  return sums + (pair * args.kept_states + index) * args.head_dim;
}

__device__ __forceinline__ float* transition_of(const SweepArgs& args, const Place& place) {
  return args.transitions +
         (place.pair * args.segments + place.segment) * args.head_dim * args.head_dim;
}

/// The key sums before the block's segment, into shared memory. A barrier must follow.
__device__ inline void load_key_sums(float* before, const SweepArgs& args, const Place& place) {
  for (int c = threadIdx.x; c < by_sixteen(args.head_dim); c += blockDim.x) {
    before[c] = place.segment > 0 && c < args.head_dim
                    ? kept_sums(args, args.states.sums, place.pair, place.segment - 1)[c]
                    : 0.f;
  }
}

/// U^T (or dR^T) of a chunk, [channels][16], as operands for the kernels to come.
template <typename Math>
__device__ __forceinline__ void store_transposed(float* to, const SweepArgs& args,
                                                 const Place& place, int chunk, int channel,
                                                 const float (&c)[2][4]) {
  float* tile =
      to + (place.chunk_index(args, chunk) * by_sixteen(args.value_dim) + channel) * kChunk;
  store_square<Math>(tile, kChunk, c);
}

/// One chunk forwards, for a warp's sixteen channels.
template <typename Math, Walk kWalk, int kDim>
__device__ __forceinline__ void step_forwards(StateRows<Math, kDim>& state, const ChunkTiles& tiles,
                                              const SweepArgs& args, const Place& place,
                                              const Channels& channels, int slice, int chunk) {
  const int key_stride = stride_of(args.head_dim), value_stride = ChunkTiles::value_stride(args);
  float retrieved[2][4] = {};  // (Wx W)^T: [channel][token]
  float out[2][4] = {};        // [token][channel]
  state.each_step([&](int s) {
    const typename Math::A w = state.operand(s);
    typename Math::B solved[2];
    Math::load_b(solved, tiles.solved_keys + s * 16, key_stride);
    Math::multiply(retrieved[0], w, solved[0]);
    Math::multiply(retrieved[1], w, solved[1]);
    if constexpr (kWalk == Walk::kOutput) {
      const typename Math::A y = Math::load_a(tiles.queries + s * 16, key_stride);
      Math::multiply(out[0], y, Math::rows_as_b(w, 0));
      Math::multiply(out[1], y, Math::rows_as_b(w, 1));
    }
  });
  float written[2][4];  // U^T
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int channel = slice * 16 + lane_id() / 4 + i / 2 * 8;
      const int token = n * 8 + lane_id() % 4 * 2 + i % 2;
      const float value = channels.identity ? 0.f : tiles.values[token * value_stride + channel];
      written[n][i] = value - retrieved[n][i];
    }
  }
  const typename Math::A u =
      Math::make_a({written[0][0], written[0][1], written[0][2], written[0][3], written[1][0],
                    written[1][1], written[1][2], written[1][3]});
  state.add(u, {tiles.keys, key_stride});
  if constexpr (kWalk == Walk::kWritten) {
    store_transposed<Math>(args.written, args, place, chunk, channels.first + slice * 16, written);
  }
  if constexpr (kWalk == Walk::kOutput) {
    const typename Math::A inside = Math::load_a(tiles.inside, kSquareStride);
    Math::multiply(out[0], inside, Math::rows_as_b(u, 0));
    Math::multiply(out[1], inside, Math::rows_as_b(u, 1));
    each_pair(out, [&](int row, int column, float first, float second) {
      const int token = chunk * kChunk + row, channel = channels.first + slice * 16 + column;
      if (token >= args.length) return;
      const float factor = tiles.factor[row];  // 0 for a dead row
      const bool live = place.live(args, token);
      const int64_t index = place.element(args.out, token) + channel;
      const float values[2] = {live ? factor * first : 0.f, live ? factor * second : 0.f};
      if (args.element == Element::kBFloat16 && args.out.aligned && channel + 1 < args.value_dim) {
        *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(args.out.data) + index) =
            Bf16::pack(values[0], values[1]);
        return;
      }
      for (int p = 0; p < 2; ++p) {
        if (channel + p < args.value_dim)
          store_element(args.out.data, index + p, args.element, values[p]);
      }
    });
  }
}

/// Leaves the numbers of a chunk's rows, and the key sums before it, for the kernels to come.
__device__ inline void store_rows(const ChunkTiles& tiles, const SweepArgs& args,
                                  const Place& place, int chunk) {
  const int row = lane_id();
  if (row < kChunk) {
    place.row_field(args, kNorm, chunk)[row] = tiles.norm[row];
    place.row_field(args, kWrite, chunk)[row] = tiles.write[row];
    place.row_field(args, kErase, chunk)[row] = tiles.erase[row];
    place.row_field(args, kOverlap, chunk)[row] = tiles.overlap[row];
  }
  const int key_dim = by_sixteen(args.head_dim);
  float* before = args.sums_before + place.chunk_index(args, chunk) * key_dim;
  for (int c = lane_id(); c < key_dim; c += kWarpSize) before[c] = tiles.before[c];
}

/// The group's chunks up to their state: a warp each, all warps of the block come along.
template <typename Math, Walk kWalk>
__device__ void prepare_forwards(const GroupTiles& group, const SweepArgs& args, const Place& place,
                                 const Channels& channels, int first_live, int first, int count) {
  constexpr bool kQueries = kWalk != Walk::kTransition;
  const auto tiles_of = [&](int index) { return group.of(args, index); };
  const int chunk = first + place.warp;
  const bool busy = place.warp < count;
  const ChunkTiles tiles = group.of(args, busy ? place.warp : 0);
  if (busy) {
    begin_chunk<Math>(tiles, args, place, chunk, kQueries);
    if (!channels.identity) {
      View values = args.v;
      values.data = static_cast<char*>(values.data) +
                    channels.first * (args.element == Element::kFloat32 ? 4 : 2);
      load_tile<Math>(tiles.values, ChunkTiles::value_stride(args), values, channels.count, args,
                      place, chunk, nullptr);
    }
  }
  __syncthreads();
  if (busy) {
    sum_before(tiles, args, group.before, place.warp, tiles_of);
    make_system<Math>(tiles, args, place, chunk, first_live);
    if (kQueries) make_inside<Math>(tiles, args, place, chunk);
    __syncwarp();
    if (kWalk == Walk::kWritten && channels.first == 0) store_rows(tiles, args, place, chunk);
    solve<Math, /*kTransposed=*/false>(tiles, args, channels.identity ? 0 : channels.count);
  }
  __syncthreads();
  add_group(group.before, args, count, tiles_of);
}

/// Keeps W and the key sums after a chunk where a segment of the kept states ends.
template <typename Math, int kDim>
__device__ void keep_state(StateRows<Math, kDim>& state, const ChunkTiles& tiles,
                           const SweepArgs& args, const Place& place, const Channels& channels,
                           int slice, int chunk) {
  if ((chunk + 1) % kSegmentChunks != 0 && chunk + 1 != chunks_of(args)) return;
  const int index = chunk / kSegmentChunks;
  store_columns(state, args, channels, slice,
                kept_memory(args, args.states.memories, place.pair, index));
  if (channels.first > 0 || slice > 0) return;
  for (int c = lane_id(); c < args.head_dim; c += kWarpSize) {
    kept_sums(args, args.states.sums, place.pair, index)[c] = tiles.before[c] + tiles.sums[c];
  }
}

template <typename Math, Walk kWalk, int kDim>
__device__ void walk_forwards(const SweepArgs& args, const Place& place, const Channels& channels,
                              int group_chunks) {
  const GroupTiles group(args, /*backward=*/false);
  const int first_live = first_live_token(args, place);
  load_key_sums(group.before, args, place);
  StateRows<Math, kDim> state(args.head_dim);
  const int slice = place.warp;
  const bool walks = slice * 16 < channels.count;
  // A transition begins with nothing, or with the identity.
  const bool starts = kWalk != Walk::kTransition && place.segment > 0;
  if (walks) {
    load_columns(
        state, args, channels, slice,
        starts ? kept_memory(args, args.states.memories, place.pair, place.segment - 1) : nullptr);
  }
  __syncthreads();
#pragma unroll 1
  for (int first = place.begin; first < place.end; first += group_chunks) {
    const int count = min(group_chunks, place.end - first);
    prepare_forwards<Math, kWalk>(group, args, place, channels, first_live, first, count);
    if (walks) {
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        const ChunkTiles tiles = group.of(args, i);
        step_forwards<Math, kWalk>(state, tiles, args, place, channels, slice, first + i);
        if (kWalk == Walk::kOutput && args.keeps_states)
          keep_state(state, tiles, args, place, channels, slice, first + i);
      }
    }
    __syncthreads();
  }
  if (kWalk == Walk::kTransition && walks) {
    float* to = channels.identity
                    ? transition_of(args, place)
                    : kept_memory(args, args.states.memories, place.pair, place.segment);
    store_columns(state, args, channels, slice, to);
  }
}

/// A chunk for a walk backwards, by one warp.
template <typename Math>
__device__ void prepare_backwards(const ChunkTiles& tiles, const SweepArgs& args,
                                  const Place& place, const Channels& channels, int chunk) {
  const int key_stride = stride_of(args.head_dim), value_stride = ChunkTiles::value_stride(args);
  make_features<Math>(tiles.keys, key_stride, args.k, args, place, chunk);
  make_features<Math>(tiles.queries, key_stride, args.q, args, place, chunk);
  load_rows(tiles, args, place, chunk);
  __syncwarp();
  if (!channels.identity) {
    View grads = args.grad_out;
    grads.data = static_cast<char*>(grads.data) +
                 channels.first * (args.element == Element::kFloat32 ? 4 : 2);
    load_tile<Math>(tiles.values, value_stride, grads, channels.count, args, place, chunk,
                    tiles.factor);
    float inside[2][4] = {};  // A^T
    add_rows_product<Math>(inside, {tiles.keys, key_stride}, {tiles.queries, key_stride},
                           by_sixteen(args.head_dim) / 16);
    keep_upper(inside, 0);
    __syncwarp();
    const typename Math::A a =
        Math::make_a({inside[0][0], inside[0][1], inside[0][2], inside[0][3], inside[1][0],
                      inside[1][1], inside[1][2], inside[1][3]});
    for (int channel = 0; channel < channels.count; channel += 16) {
      typename Math::B grad[2];
      Math::load_b_transposed(grad, tiles.values + channel, value_stride);
      float right[2][4] = {};
      Math::multiply(right[0], a, grad[0]);
      Math::multiply(right[1], a, grad[1]);
      each_pair(right, [&](int row, int column, float first, float second) {
        *reinterpret_cast<float2*>(tiles.solved_values + row * value_stride + channel + column) =
            make_float2(first, second);
      });
    }
  }
  float lower[2][4] = {};
  add_rows_product<Math>(lower, {tiles.keys, key_stride}, {tiles.keys, key_stride},
                         by_sixteen(args.head_dim) / 16);
  keep_lower(lower, -1);
  store_system</*kTransposed=*/true>(tiles, lower);
  __syncwarp();
  solve<Math, /*kTransposed=*/true>(tiles, args, channels.identity ? 0 : channels.count);
}

/// One chunk backwards, for a warp's sixteen channels.
template <typename Math, Walk kWalk, int kDim>
__device__ __forceinline__ void step_backwards(StateRows<Math, kDim>& state,
                                               const ChunkTiles& tiles, const SweepArgs& args,
                                               const Place& place, const Channels& channels,
                                               int slice, int chunk) {
  const int key_stride = stride_of(args.head_dim), value_stride = ChunkTiles::value_stride(args);
  float solved[2][4] = {};  // (Rx G)^T, then dR^T: [channel][token]
  state.each_step([&](int s) {
    const typename Math::A g = state.operand(s);
    typename Math::B keys[2];
    Math::load_b(keys, tiles.solved_keys + s * 16, key_stride);
    Math::multiply(solved[0], g, keys[0]);
    Math::multiply(solved[1], g, keys[1]);
  });
  float erased[8];  // E^T, as an operand's numbers
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int channel = slice * 16 + lane_id() / 4 + i / 2 * 8;
      const int token = n * 8 + lane_id() % 4 * 2 + i % 2;
      if (!channels.identity) solved[n][i] += tiles.solved_values[token * value_stride + channel];
      erased[4 * n + i] = -tiles.erase[token] * solved[n][i];
    }
  }
  state.add(Math::make_a(erased), {tiles.keys, key_stride});
  if (!channels.identity) {
    state.add(Math::load_a_transposed(tiles.values + slice * 16, value_stride),
              {tiles.queries, key_stride});
  }
  if constexpr (kWalk == Walk::kSolved) {
    store_transposed<Math>(args.solved, args, place, chunk, channels.first + slice * 16, solved);
  }
}

template <typename Math, Walk kWalk, int kDim>
__device__ void walk_backwards(const SweepArgs& args, const Place& place, const Channels& channels,
                               int group_chunks) {
  const GroupTiles group(args, /*backward=*/true);
  StateRows<Math, kDim> state(args.head_dim);
  const int slice = place.warp;
  const bool walks = slice * 16 < channels.count;
  const bool starts = kWalk != Walk::kTransition && place.segment + 1 < args.segments;
  if (walks) {
    load_columns(state, args, channels, slice,
                 starts ? kept_memory(args, args.gradients.memories, place.pair, place.segment + 1)
                        : nullptr);
  }
#pragma unroll 1
  for (int end = place.end; end > place.begin; end -= group_chunks) {
    const int first = max(end - group_chunks, place.begin), count = end - first;
    if (place.warp < count)
      prepare_backwards<Math>(group.of(args, place.warp), args, place, channels,
                              first + place.warp);
    __syncthreads();
    if (walks) {
#pragma unroll 1
      for (int i = count - 1; i >= 0; --i) {
        step_backwards<Math, kWalk>(state, group.of(args, i), args, place, channels, slice,
                                    first + i);
      }
    }
    __syncthreads();
  }
  if (kWalk == Walk::kTransition && walks) {
    float* to = channels.identity
                    ? transition_of(args, place)
                    : kept_memory(args, args.gradients.memories, place.pair, place.segment);
    store_columns(state, args, channels, slice, to);
  }
}

}  // namespace fmmformer::cuda::fast_weight
