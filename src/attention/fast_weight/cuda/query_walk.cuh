// SPDX-License-Identifier: Apache-2.0
// The walk forwards that makes dq, dv and dbeta.
#pragma once

#include "attention/fast_weight/cuda/gradients.cuh"
#include "attention/fast_weight/cuda/row_gradient.cuh"

namespace fmmformer::cuda::fast_weight {

/// squares: the lower triangles of dO U^T and dR U^T, a warp each.
template <typename Math, typename S, typename Tiles>
__device__ __forceinline__ void prepare_queries(const Team<S>& team, const Tiles& tiles,
                                                const SweepArgs& args, const Place& place,
                                                int chunk) {
  load_chunk<Math, /*kErased=*/false>(team, tiles, args, place, chunk, /*fields=*/4);
  const int steps = by_sixteen(args.value_dim) / 16;
  const typename Tiles::Transposed written{tiles.written()};
  if (team.warp == 0) {
    float inside[2][4] = {};
    add_rows_product<Math>(inside, typename Tiles::Values{tiles.grads()}, written, steps);
    keep_lower(inside, 0);
    store_square<Math>(tiles.square(0), inside);
  }
  if (team.warp == S::kTeam - 1) {
    float erased[2][4] = {};
    add_rows_product<Math>(erased, typename Tiles::Transposed{tiles.solved()}, written, steps);
    keep_lower(erased, -1);
    store_square<Math>(tiles.square(1), erased);
  }
}

/// results: dY, and the same with dR in place of dO.
template <typename Math, typename S, typename Tiles>
__device__ __forceinline__ void step_queries(StateRows<Math, S::kValues>& state, const Tiles& tiles,
                                             int slice) {
  const float* keys = tiles.keys() + slice * 16;
  float from_grads[2][4] = {}, from_solved[2][4] = {};
  state.each_step([&](int s) {
    const typename Math::A w = state.operand(s);
    const typename Math::B b[2] = {Math::rows_as_b(w, 0), Math::rows_as_b(w, 1)};
    const typename Math::A grads = Math::load_a(tiles.grads() + s * 16, S::kValueStride);
    Math::multiply(from_grads[0], grads, b[0]), Math::multiply(from_grads[1], grads, b[1]);
    const typename Math::A solved =
        Math::load_a_transposed(tiles.solved() + s * 16 * kSquareStride, kSquareStride);
    Math::multiply(from_solved[0], solved, b[0]), Math::multiply(from_solved[1], solved, b[1]);
  });
  add_inside<Math, S>(from_grads, tiles.square(0), keys);
  add_inside<Math, S>(from_solved, tiles.square(1), keys);
  store_result<S>(tiles.result(0), slice, from_grads);
  store_result<S>(tiles.result(1), slice, from_solved);
  state.add(Math::load_a_transposed(keys, S::kKeyStride),
            typename Tiles::Transposed{tiles.written()});
}

/// dots: <y, dY>, <x, result 1> and <dR, v> of every row; writes dv on the way.
template <typename S, typename Tiles>
__device__ __forceinline__ void dot_rows(const Team<S>& team, const Tiles& tiles,
                                         const SweepArgs& args, const Place& place, int chunk) {
  each_piece<S, S::kKeys>(team, [&](int row, int channel) {
    const int at = row * S::kKeyStride + channel;
    const auto dot = [&](const float* x, const float* y) {
      float a[kPiece], b[kPiece], sum = 0.f;
      if (channel < args.head_dim) {  // results are not made beyond D
        Tf32x3::load_row(a, x + at), Tf32x3::load_row(b, y + at);
#pragma unroll
        for (int i = 0; i < kPiece; ++i) sum += a[i] * b[i];
      }
      return sum_across<S::kKeys>(sum);
    };
    const float with_queries = dot(tiles.queries(), tiles.result(0));
    const float with_keys = dot(tiles.keys(), tiles.result(1));
    if (channel == 0) tiles.dot(0)[row] = with_queries, tiles.dot(1)[row] = with_keys;
  });
  each_piece<S, S::kValues>(team, [&](int row, int channel) {
    const int token = chunk * kChunk + row;
    const bool live = place.live(args, token);
    float v[kPiece], solved[kPiece] = {}, dot = 0.f;
    load_piece(v, args.v, place.element(args.v, token), channel, args.value_dim, args.element,
               live);
    if (live && channel < args.value_dim) {  // v and dR are zero beyond Dv
      const float write = tiles.number(kWrite)[row];
#pragma unroll
      for (int i = 0; i < kPiece; ++i) {
        const float own = tiles.solved()[(channel + i) * kSquareStride + row];
        dot += own * v[i];
        solved[i] = write * own;
      }
    }
    dot = sum_across<S::kValues>(dot);
    if (channel == 0) tiles.dot(2)[row] = dot;
    if (token < args.length)
      store_piece(solved, args.dv, place.element(args.dv, token), channel, args.value_dim,
                  args.element);
  });
}

/// From the dots of a row to its gradients: of beta, written, and what the key sweep needs.
template <typename Tiles>
__device__ __forceinline__ void finish_row(const Tiles& tiles, const SweepArgs& args,
                                           const Place& place, int chunk, int row, int first_live) {
  const int token = chunk * kChunk + row;
  const RowDots dots{tiles.dot(0)[row], tiles.dot(1)[row], tiles.dot(2)[row]};
  const RowGradient gradient = gradient_of_row(
      dots, tiles.number(kNorm)[row], tiles.number(kOverlap)[row], args, place, token, first_live);
  tiles.number(kNormGradient)[row] = gradient.norm;
  tiles.number(kOverlapGradient)[row] = gradient.overlap;
  place.row_field(args, kNormGradient, chunk)[row] = gradient.norm;
  place.row_field(args, kOverlapGradient, chunk)[row] = gradient.overlap;
  if (token < args.length) store_beta_gradient(args, place, token, gradient.beta);
}

/// dq, dv and dbeta of a chunk, and what is left for the key sweep.
template <typename Math, typename S, typename Tiles>
__device__ __forceinline__ void finish_queries(const Team<S>& team, const Tiles& tiles,
                                               const SweepArgs& args, const Place& place, int chunk,
                                               int first_live) {
  const int key_dim = by_sixteen(args.head_dim);
  dot_rows(team, tiles, args, place, chunk);
  team.wait();
  if (team.thread < kChunk) finish_row(tiles, args, place, chunk, team.thread, first_live);
  team.wait();
  float* key_gradients = args.key_gradients + place.chunk_index(args, chunk) * kChunk * key_dim;
  for (int c = team.thread; c < key_dim; c += S::kTeamThreads) {
    float sum = tiles.before()[c], part = 0.f;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const int at = i * S::kKeyStride + c;
      const float key = tiles.keys()[at], of_norm = tiles.number(kNormGradient)[i];
      sum += key;
      part += tiles.number(kOverlapGradient)[i] * key - of_norm * tiles.queries()[at];
      tiles.result(0)[at] -= of_norm * sum;
      key_gradients[i * key_dim + c] = -tiles.number(kErase)[i] * tiles.result(1)[at];
    }
    tiles.sums()[c] = part;
  }
  team.wait();
  store_input_gradient<Math>(team, args.dq, args.q, tiles.result(0), args, place, chunk);
}

template <typename Math, typename S>
__device__ void walk_queries(const SweepArgs& args, const Place& place) {
  using Group = GradientGroup<S, 2>;
  const Team<S> team;
  const int first_live = first_live_token(args, place), slice = threadIdx.x / kWarpSize;
  const bool walks = slice * 16 < args.head_dim;
  for (int c = threadIdx.x; c < S::kKeys; c += S::kThreads) Group::after()[c] = 0.f;
  StateRows<Math, S::kValues> state(args.value_dim);
  if (walks && place.segment > 0) {
    load_state_rows(state, args, slice,
                    kept_memory(args, args.states.memories, place.pair, place.segment - 1));
  }
#pragma unroll 1
  for (int first = place.begin; first < place.end; first += S::kGroup) {
    const int count = min(S::kGroup, place.end - first), chunk = first + team.index;
    const bool busy = team.index < count;
    if (busy) prepare_queries<Math>(team, Group::of(team.index), args, place, chunk);
    __syncthreads();
    if (walks) {
#pragma unroll 1
      for (int i = 0; i < count; ++i) step_queries<Math, S>(state, Group::of(i), slice);
    }
    __syncthreads();
    if (busy) finish_queries<Math>(team, Group::of(team.index), args, place, chunk, first_live);
    __syncthreads();
    Group::add(count);
    // The next group writes its sums only after another barrier.
  }
  if (!args.gradients.sums) return;
  __syncthreads();
  for (int c = threadIdx.x; c < args.head_dim; c += S::kThreads)
    kept_sums(args, args.gradients.sums, place.pair, place.segment)[c] = Group::after()[c];
}

}  // namespace fmmformer::cuda::fast_weight
