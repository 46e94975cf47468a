// SPDX-License-Identifier: Apache-2.0
// What the walks along rows of W^T and G^T share, in which every step depends on the one before. A
// thread block has up to S::kValues channels of v, or of the identity, a warp for sixteen of them.
#pragma once

#include "attention/fast_weight/cuda/chunk.cuh"

namespace fmmformer::cuda::fast_weight {

extern __shared__ __align__(16) unsigned char dynamic_shared_memory[];

enum class Walk {
  kOutput,      // forwards: writes out
  kWritten,     // forwards, for backward: writes U and the numbers of every row
  kTransition,  // either way: the segment's T and B
  kSolved,      // backwards: writes dR
  kLeft,        // backwards: leaves dR and the chunk's G in its tiles (short_backward.cuh)
};

/// A block's part of the channels: of v, or (`identity`) of the keys.
template <typename S>
struct Channels {
  bool identity;
  int first, count;

  __host__ __device__ static int blocks(int channels) {
    return (channels + S::kValues - 1) / S::kValues;
  }
  __device__ Channels(const SweepArgs& args, int block) {
    identity = block >= blocks(args.value_dim);
    first = (identity ? block - blocks(args.value_dim) : block) * S::kValues;
    count = min((identity ? args.head_dim : args.value_dim) - first, S::kValues);
  }
  /// The block's channels of v or of grad_out.
  __device__ View of(View view, Element element) const {
    view.data =
        static_cast<char*>(view.data) + int64_t(first) * (element == Element::kFloat32 ? 4 : 2);
    return view;
  }
};

/// A thread block's shared memory: the key sums before the group, then the group's chunks.
template <typename S, bool kBackward>
struct GroupTiles {
  using Tiles = ChunkTiles<S, kBackward>;
  static constexpr int kBytes = (S::kKeys + S::kGroup * Tiles::kSize) * sizeof(float);

  static __device__ float* before() { return reinterpret_cast<float*>(dynamic_shared_memory); }
  static __device__ Tiles of(int index) { return {before() + S::kKeys + index * Tiles::kSize}; }
};

/// The state of a warp's sixteen channels from memory [D, row_length] (none: zeros, or ones on the
/// diagonal), and back.
template <typename State, typename S>
__device__ void load_columns(State& state, const SweepArgs& args, const Channels<S>& channels,
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
template <typename State, typename S>
__device__ void store_columns(State& state, const SweepArgs& args, const Channels<S>& channels,
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

/// W^T before a chunk, [16][16]: only where a state has no more channels.
__device__ __forceinline__ float* memory_before(const SweepArgs& args, const Place& place,
                                                int chunk) {
  return args.memories_before + place.chunk_index(args, chunk) * 16 * 16;
}

/// The key sums before the block's segment, into shared memory. A barrier must follow.
template <typename S>
__device__ void load_key_sums(float* before, const SweepArgs& args, const Place& place) {
  for (int c = threadIdx.x; c < S::kKeys; c += S::kThreads) {
    before[c] = place.segment > 0 && c < args.head_dim
                    ? kept_sums(args, args.states.sums, place.pair, place.segment - 1)[c]
                    : 0.f;
  }
}

/// U^T (or dR^T) of a chunk, [channels][16], for the kernels to come: dR is not only an operand.
template <typename Math>
__device__ __forceinline__ void store_transposed(float* to, const SweepArgs& args,
                                                 const Place& place, int chunk, int channel,
                                                 const float (&c)[2][4]) {
  float* tile =
      to + (place.chunk_index(args, chunk) * by_sixteen(args.value_dim) + channel) * kChunk;
  each_pair(c, [&](int row, int column, float first, float second) {
    *reinterpret_cast<float2*>(tile + row * kChunk + column) =
        make_float2(Math::rounded(first), Math::rounded(second));
  });
}

}  // namespace fmmformer::cuda::fast_weight
