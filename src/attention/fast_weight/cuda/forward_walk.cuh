// SPDX-License-Identifier: Apache-2.0
// The walk forwards: out, or U, or a segment's transition.
#pragma once

#include "attention/fast_weight/cuda/walks.cuh"

namespace fmmformer::cuda::fast_weight {

/// Forward leaves its walk to backward where heads are narrow and it is asked to.
template <Walk kWalk, typename S>
constexpr bool kKeepsWalk = kWalk == Walk::kOutput&& S::kKeys == 16 && S::kValues == 16;
/// Whether U and the rows' numbers are written.
template <Walk kWalk, typename S>
__device__ __forceinline__ bool leaves_rows(const SweepArgs& args) {
  return kWalk == Walk::kWritten || (kKeepsWalk<kWalk, S> && args.memories_before);
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
  if constexpr (kKeepsWalk<kWalk, S>) {
    if (args.memories_before)
      store_square<Math, kChunk>(memory_before(args, place, chunk), state.sums);
  }
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
  if (leaves_rows<kWalk, S>(args)) {
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
    if (kQueries && team.warp == S::kTeam - 1)
      make_inside<Math, kWalk == Walk::kOutput>(tiles, args, place, chunk);
    team.wait();
    if (leaves_rows<kWalk, S>(args) && channels.first == 0)
      store_rows(team, tiles, args, place, chunk);
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

}  // namespace fmmformer::cuda::fast_weight
