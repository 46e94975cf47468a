// SPDX-License-Identifier: Apache-2.0
// The walk backwards: dR, or a segment's transition for G.
#pragma once

#include "attention/fast_weight/cuda/walks.cuh"

namespace fmmformer::cuda::fast_weight {

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
__device__ __forceinline__ InverseSums prepare_backwards(const Team<S>& team, const Tiles& tiles,
                                                         const SweepArgs& args, const Place& place,
                                                         const Channels<S>& channels, int chunk) {
  const int key_steps = by_sixteen(args.head_dim) / 16;
  load_rows(team.thread, tiles, args, place, chunk);
  const InverseSums inverse = begin_chunk<Math>(team, tiles, args, place, chunk, /*queries=*/true);
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
  return inverse;
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
  if constexpr (kWalk == Walk::kLeft) {  // G^T takes the place of Rx
    __syncwarp();
    store_square<Math, S::kKeyStride>(tiles.solved_keys(), state.sums);
  }
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
      if constexpr (kWalk == Walk::kLeft)  // dR takes the place of Rv, every number by its reader
        tiles.solved_values()[token * S::kValueStride + channel] = Math::rounded(solved[n][i]);
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
