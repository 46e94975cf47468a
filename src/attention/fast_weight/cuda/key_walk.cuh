// SPDX-License-Identifier: Apache-2.0
// The walk backwards that makes dk.
#pragma once

#include "attention/fast_weight/cuda/gradients.cuh"

namespace fmmformer::cuda::fast_weight {

/// squares: the upper triangles of U dO^T and U E^T, a warp each; sums: what the chunk adds to the
/// gradient of the key sums.
template <typename Math, typename S, typename Tiles>
__device__ __forceinline__ void prepare_keys(const Team<S>& team, const Tiles& tiles,
                                             const SweepArgs& args, const Place& place, int chunk) {
  load_chunk<Math, /*kErased=*/true>(team, tiles, args, place, chunk, kRowFields);
  const int steps = by_sixteen(args.value_dim) / 16;
  const typename Tiles::Transposed written{tiles.written()};
  if (team.warp == 0) {
    float inside[2][4] = {};
    add_rows_product<Math>(inside, written, typename Tiles::Values{tiles.grads()}, steps);
    keep_upper(inside, 0);
    store_square<Math>(tiles.square(0), inside);
  }
  if (team.warp == S::kTeam - 1) {
    float erased[2][4] = {};
    add_rows_product<Math>(erased, written, typename Tiles::Transposed{tiles.solved()}, steps);
    keep_upper(erased, 1);
    store_square<Math>(tiles.square(1), erased);
  }
  for (int c = team.thread; c < S::kKeys; c += S::kTeamThreads) {
    float part = 0.f;
#pragma unroll
    for (int i = 0; i < kChunk; ++i)
      part += tiles.number(kOverlapGradient)[i] * tiles.keys()[i * S::kKeyStride + c] -
              tiles.number(kNormGradient)[i] * tiles.queries()[i * S::kKeyStride + c];
    tiles.sums()[c] = part;
  }
}

/// result: dX without what came from the state before the chunk.
template <typename Math, typename S, typename Tiles>
__device__ __forceinline__ void step_keys(StateRows<Math, S::kValues>& state, const Tiles& tiles,
                                          int slice) {
  const float *keys = tiles.keys() + slice * 16, *queries = tiles.queries() + slice * 16;
  float result[2][4] = {};
  state.each_step([&](int s) {
    const typename Math::A g = state.operand(s);
    const typename Math::A written =
        Math::load_a_transposed(tiles.written() + s * 16 * kSquareStride, kSquareStride);
    Math::multiply(result[0], written, Math::rows_as_b(g, 0));
    Math::multiply(result[1], written, Math::rows_as_b(g, 1));
  });
  add_inside<Math, S>(result, tiles.square(0), queries);
  add_inside<Math, S>(result, tiles.square(1), keys);
  store_result<S>(tiles.result(0), slice, result);
  state.add(Math::load_a_transposed(queries, S::kKeyStride), typename Tiles::Values{tiles.grads()});
  state.add(Math::load_a_transposed(keys, S::kKeyStride),
            typename Tiles::Transposed{tiles.solved()});
}

/// dk of a chunk, with the gradient of the key sums after it.
template <typename Math, typename Group, typename S>
__device__ __forceinline__ void finish_keys(const Team<S>& team, const SweepArgs& args,
                                            const Place& place, int chunk, int count) {
  const typename Group::Tiles tiles = Group::of(team.index);
  const int key_dim = by_sixteen(args.head_dim);
  const float* key_gradients =
      args.key_gradients + place.chunk_index(args, chunk) * kChunk * key_dim;
  for (int c = team.thread; c < key_dim; c += S::kTeamThreads) {
    float sum = tiles.before()[c], gradient = Group::after()[c], dx[kChunk];
#pragma unroll
    for (int later = 1; later < S::kGroup; ++later) {
      if (later > team.index && later < count) gradient += Group::of(later).sums()[c];
    }
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const int at = i * S::kKeyStride + c;
      dx[i] = tiles.result(0)[at] + key_gradients[i * key_dim + c] +
              tiles.number(kOverlapGradient)[i] * sum;
      sum += tiles.keys()[at];
    }
#pragma unroll
    for (int i = kChunk - 1; i >= 0; --i) {
      const int at = i * S::kKeyStride + c;
      gradient -= tiles.number(kNormGradient)[i] * tiles.queries()[at];
      tiles.result(0)[at] = dx[i] + gradient;
      gradient += tiles.number(kOverlapGradient)[i] * tiles.keys()[at];
    }
  }
  team.wait();
  store_input_gradient<Math>(team, args.dk, args.k, tiles.result(0), args, place, chunk);
}

template <typename Math, typename S>
__device__ void walk_keys(const SweepArgs& args, const Place& place) {
  using Group = GradientGroup<S, 1>;
  const Team<S> team;
  const int slice = threadIdx.x / kWarpSize;
  const bool walks = slice * 16 < args.head_dim, last = place.segment + 1 == args.segments;
  for (int c = threadIdx.x; c < S::kKeys; c += S::kThreads) {
    Group::after()[c] = last || c >= args.head_dim ? 0.f
                                                   : kept_sums(args, args.gradients.sums,
                                                               place.pair, place.segment + 1)[c];
  }
  StateRows<Math, S::kValues> state(args.value_dim);
  if (walks && !last) {
    load_state_rows(state, args, slice,
                    kept_memory(args, args.gradients.memories, place.pair, place.segment + 1));
  }
#pragma unroll 1
  for (int end = place.end; end > place.begin; end -= S::kGroup) {
    const int first = max(end - S::kGroup, place.begin), count = end - first;
    const int chunk = first + team.index;
    const bool busy = team.index < count;
    if (busy) prepare_keys<Math>(team, Group::of(team.index), args, place, chunk);
    __syncthreads();
    if (walks) {
#pragma unroll 1
      for (int i = count - 1; i >= 0; --i) step_keys<Math, S>(state, Group::of(i), slice);
    }
    __syncthreads();
    if (busy) finish_keys<Math, Group>(team, args, place, chunk, count);
    __syncthreads();
    Group::add(count);
    __syncthreads();
  }
}

}  // namespace fmmformer::cuda::fast_weight
