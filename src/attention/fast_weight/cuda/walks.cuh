// SPDX-License-Identifier: Apache-2.0
// The walks along rows of W^T and G^T, in which every step depends on the one before. A thread
// block has up to S::kValues channels of v, or of the identity, a warp for sixteen of them.
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

/// The key sums before the block's segment, into shared memory. A barrier must follow.
template <typename S>
__device__ void load_key_sums(float* before, const SweepArgs& args, const Place& place) {
  for (int c = threadIdx.x; c < S::kKeys; c += S::kThreads) {
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
  store_square<Math, kChunk>(tile, c);
}

/// out[token][channel] of a warp's sixteen channels.
template <typename S, typename Tiles>
__device__ __forceinline__ void store_out(const float (&out)[2][4], const Tiles& tiles,
                                          const SweepArgs& args, const Place& place,
                                          const Channels<S>& channels, int slice, int chunk) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = lane_id() / 4 + 8 * r, token = chunk * kChunk + row;
    if (token >= args.length) continue;
    const bool live = place.live(args, token);
    const float factor = tiles.factor()[row];
    const int64_t start = place.element(args.out, token);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int channel = channels.first + slice * 16 + n * 8 + lane_id() % 4 * 2;
      const float first = live ? factor * out[n][2 * r] : 0.f,
                  second = live ? factor * out[n][2 * r + 1] : 0.f;
      if (args.element == Element::kBFloat16 && args.out.aligned && channel + 1 < args.value_dim) {
        *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(args.out.data) + start + channel) =
            Bf16::pack(first, second);
        continue;
      }
      if (channel < args.value_dim)
        store_element(args.out.data, start + channel, args.element, first);
      if (channel + 1 < args.value_dim)
        store_element(args.out.data, start + channel + 1, args.element, second);
    }
  }
}

/// One chunk forwards, for a warp's sixteen channels.
template <typename Math, Walk kWalk, typename S, typename Tiles>
__device__ __forceinline__ void step_forwards(StateRows<Math, S::kKeys>& state, const Tiles& tiles,
                                              const SweepArgs& args, const Place& place,
                                              const Channels<S>& channels, int slice, int chunk) {
  float retrieved[2][4] = {};  // (Wx W)^T: [channel][token]
  float out[2][4] = {};        // [token][channel]
  state.each_step([&](int s) {
    const typename Math::A w = state.operand(s);
    typename Math::B solved[2];
    Math::load_b(solved, tiles.solved_keys() + s * 16, S::kKeyStride);
    Math::multiply(retrieved[0], w, solved[0]);
    Math::multiply(retrieved[1], w, solved[1]);
    if constexpr (kWalk == Walk::kOutput) {
      const typename Math::A y = Math::load_a(tiles.queries() + s * 16, S::kKeyStride);
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
      const float value =
          channels.identity ? 0.f : tiles.values()[token * S::kValueStride + channel];
      written[n][i] = value - retrieved[n][i];
    }
  }
  const typename Math::A u = as_operand<Math>(written);
  state.add(u, typename Tiles::Keys{tiles.keys()});
  if constexpr (kWalk == Walk::kWritten) {
    store_transposed<Math>(args.written, args, place, chunk, channels.first + slice * 16, written);
  }
  if constexpr (kWalk == Walk::kOutput) {
    const typename Math::A inside = Math::load_a(tiles.inside(), kSquareStride);
    Math::multiply(out[0], inside, Math::rows_as_b(u, 0));
    Math::multiply(out[1], inside, Math::rows_as_b(u, 1));
    store_out(out, tiles, args, place, channels, slice, chunk);
  }
}

/// Leaves the numbers of a chunk's rows, and the key sums before it, for the kernels to come.
template <typename S, typename Tiles>
__device__ __forceinline__ void store_rows(const Team<S>& team, const Tiles& tiles,
                                           const SweepArgs& args, const Place& place, int chunk) {
  if (team.thread < kChunk) {
    const int row = team.thread;
    place.row_field(args, kNorm, chunk)[row] = tiles.norm()[row];
    place.row_field(args, kWrite, chunk)[row] = tiles.write()[row];
    place.row_field(args, kErase, chunk)[row] = tiles.erase()[row];
    place.row_field(args, kOverlap, chunk)[row] = tiles.overlap()[row];
  }
  const int key_dim = by_sixteen(args.head_dim);
  float* before = args.sums_before + place.chunk_index(args, chunk) * key_dim;
  for (int c = team.thread; c < key_dim; c += S::kTeamThreads) before[c] = tiles.before()[c];
}

/// The group's chunks up to their state: a team each, all threads of the block come along.
template <typename Math, Walk kWalk, typename S>
__device__ __forceinline__ void prepare_forwards(const SweepArgs& args, const Place& place,
                                                 const Channels<S>& channels, int first_live,
                                                 int first, int count) {
  constexpr bool kQueries = kWalk != Walk::kTransition;
  using Group = GroupTiles<S, false>;
  const Team<S> team;
  const int chunk = first + team.index;
  const bool busy = team.index < count;
  const typename Group::Tiles tiles = Group::of(team.index);
  if (busy) {
    begin_chunk<Math>(team, tiles, args, place, chunk, kQueries);
    if (!channels.identity) {
      load_tile<Math, S, S::kValues>(team, tiles.values(), channels.of(args.v, args.element),
                                     channels.count, args, place, chunk, nullptr);
    }
    team.wait();
    sum_chunk(team, tiles);
  }
  __syncthreads();
  if (busy) {
    sum_before(team, tiles, Group::of(0), Group::before());
    team.wait();
    if (team.warp == 0) make_system<Math>(tiles, args, place, chunk, first_live);
    if (kQueries && team.warp == S::kTeam - 1) make_inside<Math>(tiles, args, place, chunk);
    team.wait();
    if (kWalk == Walk::kWritten && channels.first == 0) store_rows(team, tiles, args, place, chunk);
    solve<Math, S, /*kTransposed=*/false>(team, tiles, !channels.identity);
  }
  __syncthreads();
  add_group<S>(Group::before(), Group::of(0), count);
}

/// Keeps W and the key sums after a chunk where a segment of the kept states ends.
template <typename S, typename State, typename Tiles>
__device__ __forceinline__ void keep_state(State& state, const Tiles& tiles, const SweepArgs& args,
                                           const Place& place, const Channels<S>& channels,
                                           int slice, int chunk) {
  if ((chunk + 1) % kSegmentChunks != 0 && chunk + 1 != chunks_of(args)) return;
  const int index = chunk / kSegmentChunks;
  store_columns(state, args, channels, slice,
                kept_memory(args, args.states.memories, place.pair, index));
  if (channels.first > 0 || slice > 0) return;
  for (int c = lane_id(); c < args.head_dim; c += kWarpSize) {
    kept_sums(args, args.states.sums, place.pair, index)[c] = tiles.before()[c] + tiles.sums()[c];
  }
}

template <typename Math, Walk kWalk, typename S>
__device__ void walk_forwards(const SweepArgs& args, const Place& place,
                              const Channels<S>& channels) {
  using Group = GroupTiles<S, false>;
  const int first_live = first_live_token(args, place);
  load_key_sums<S>(Group::before(), args, place);
  StateRows<Math, S::kKeys> state(args.head_dim);
  const int slice = threadIdx.x / kWarpSize;
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
  for (int first = place.begin; first < place.end; first += S::kGroup) {
    const int count = min(S::kGroup, place.end - first);
    prepare_forwards<Math, kWalk, S>(args, place, channels, first_live, first, count);
    if (walks) {
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        const typename Group::Tiles tiles = Group::of(i);
        step_forwards<Math, kWalk, S>(state, tiles, args, place, channels, slice, first + i);
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

/// Rv's right-hand side, A^T dO: a warp has sixteen channels at a time.
template <typename Math, typename S, typename Tiles>
__device__ __forceinline__ void start_solved_values(const Team<S>& team, const Tiles& tiles,
                                                    int key_steps, int channels) {
  if (team.warp * 16 >= channels) return;
  float inside[2][4] = {};  // A^T
  add_rows_product<Math>(inside, typename Tiles::Keys{tiles.keys()},
                         typename Tiles::Keys{tiles.queries()}, key_steps);
  keep_upper(inside, 0);
  const typename Math::A a = as_operand<Math>(inside);
  for (int channel = team.warp * 16; channel < channels; channel += S::kTeam * 16) {
    typename Math::B grad[2];
    Math::load_b_transposed(grad, tiles.values() + channel, S::kValueStride);
    float right[2][4] = {};
    Math::multiply(right[0], a, grad[0]);
    Math::multiply(right[1], a, grad[1]);
    each_pair(right, [&](int row, int column, float first, float second) {
      *reinterpret_cast<float2*>(tiles.solved_values() + row * S::kValueStride + channel + column) =
          make_float2(first, second);
    });
  }
}

/// A chunk for a walk backwards, by its team.
template <typename Math, typename S, typename Tiles>
__device__ __forceinline__ void prepare_backwards(const Team<S>& team, const Tiles& tiles,
                                                  const SweepArgs& args, const Place& place,
                                                  const Channels<S>& channels, int chunk) {
  const int key_steps = by_sixteen(args.head_dim) / 16;
  load_rows(team.thread, tiles, args, place, chunk);
  begin_chunk<Math>(team, tiles, args, place, chunk, /*queries=*/true);
  team.wait();
  if (!channels.identity) {
    load_tile<Math, S, S::kValues>(team, tiles.values(), channels.of(args.grad_out, args.element),
                                   channels.count, args, place, chunk, tiles.factor());
  }
  if (team.warp == S::kTeam - 1) {
    const typename Tiles::Keys keys{tiles.keys()};
    float lower[2][4] = {};
    add_rows_product<Math>(lower, keys, keys, key_steps);
    keep_lower(lower, -1);
    store_system</*kTransposed=*/true>(tiles, lower);
  }
  team.wait();
  if (!channels.identity) start_solved_values<Math>(team, tiles, key_steps, S::kValues);
  team.wait();
  solve<Math, S, /*kTransposed=*/true>(team, tiles, !channels.identity);
}

/// One chunk backwards, for a warp's sixteen channels.
template <typename Math, Walk kWalk, typename S, typename Tiles>
__device__ __forceinline__ void step_backwards(StateRows<Math, S::kKeys>& state, const Tiles& tiles,
                                               const SweepArgs& args, const Place& place,
                                               const Channels<S>& channels, int slice, int chunk) {
  const typename Tiles::Keys keys{tiles.keys()}, queries{tiles.queries()};
  float solved[2][4] = {};  // (Rx G)^T, then dR^T: [channel][token]
  state.each_step([&](int s) {
    const typename Math::A g = state.operand(s);
    typename Math::B right[2];
    Math::load_b(right, tiles.solved_keys() + s * 16, S::kKeyStride);
    Math::multiply(solved[0], g, right[0]);
    Math::multiply(solved[1], g, right[1]);
  });
  float erased[8];  // E^T, as an operand's numbers
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int channel = slice * 16 + lane_id() / 4 + i / 2 * 8;
      const int token = n * 8 + lane_id() % 4 * 2 + i % 2;
      if (!channels.identity)
        solved[n][i] += tiles.solved_values()[token * S::kValueStride + channel];
      erased[4 * n + i] = -tiles.erase()[token] * solved[n][i];
    }
  }
  state.add(Math::make_a(erased), keys);
  if (!channels.identity)
    state.add(Math::load_a_transposed(tiles.values() + slice * 16, S::kValueStride), queries);
  if constexpr (kWalk == Walk::kSolved) {
    store_transposed<Math>(args.solved, args, place, chunk, channels.first + slice * 16, solved);
  }
}

template <typename Math, Walk kWalk, typename S>
__device__ void walk_backwards(const SweepArgs& args, const Place& place,
                               const Channels<S>& channels) {
  using Group = GroupTiles<S, true>;
  const Team<S> team;
  StateRows<Math, S::kKeys> state(args.head_dim);
  const int slice = threadIdx.x / kWarpSize;
  const bool walks = slice * 16 < channels.count;
  const bool starts = kWalk != Walk::kTransition && place.segment + 1 < args.segments;
  if (walks) {
    load_columns(state, args, channels, slice,
                 starts ? kept_memory(args, args.gradients.memories, place.pair, place.segment + 1)
                        : nullptr);
  }
#pragma unroll 1
  for (int end = place.end; end > place.begin; end -= S::kGroup) {
    const int first = max(end - S::kGroup, place.begin), count = end - first;
    if (team.index < count) {
      prepare_backwards<Math>(team, Group::of(team.index), args, place, channels,
                              first + team.index);
    }
    __syncthreads();
    if (walks) {
#pragma unroll 1
      for (int i = count - 1; i >= 0; --i)
        step_backwards<Math, kWalk, S>(state, Group::of(i), args, place, channels, slice,
                                       first + i);
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
