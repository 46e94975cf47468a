// SPDX-License-Identifier: Apache-2.0
// Backward in one kernel, for a sequence that is one segment and heads of up to sixteen channels:
// then a chunk is one warp's, and W, G, U, dR and both triangles are one tile each. A thread block
// has a (batch entry, head). From U and the W before every chunk, which forward left in memory, it
// walks backwards through groups of chunks, a warp each:
//
//   prepare     features, dO, Rv and Rx                         all warps beside each other
//   walk        dR and the G after every chunk, in its tiles    one warp
//   finish      dq, dv, dbeta, and dk but for what later chunks add to it
//   finish_keys dk
//
// What the sweeps for longer sequences and wider heads prepare four times is prepared once, and
// neither dR nor a part of dk goes through memory.
#pragma once

#include "attention/fast_weight/cuda/backward_walk.cuh"
#include "attention/fast_weight/cuda/gradients.cuh"
#include "attention/fast_weight/cuda/row_gradient.cuh"

namespace fmmformer::cuda::fast_weight {

using Square = float[2][4];  // a lane's part of C[16, 16]

/// The lane's columns 2 p, 2 p + 1, 8 + 2 p and 9 + 2 p of a vector of sixteen.
struct LaneColumns {
  float2 half[2];

  __device__ __forceinline__ explicit LaneColumns(const float* vector) {
#pragma unroll
    for (int n = 0; n < 2; ++n)
      half[n] = *reinterpret_cast<const float2*>(vector + n * 8 + lane_id() % 4 * 2);
  }
  /// The one of element `i` of column tile n.
  __device__ __forceinline__ float operator()(int n, int i) const {
    return i % 2 == 0 ? half[n].x : half[n].y;
  }
  __device__ __forceinline__ void add(const LaneColumns& other) {
#pragma unroll
    for (int n = 0; n < 2; ++n) half[n].x += other.half[n].x, half[n].y += other.half[n].y;
  }
};
/// ... and its rows g and g + 8.
struct LaneRows {
  float row[2];

  __device__ __forceinline__ explicit LaneRows(const float* vector)
      : row{vector[lane_id() / 4], vector[lane_id() / 4 + 8]} {}
  __device__ __forceinline__ float operator()(int i) const { return row[i / 2]; }
};

/// body(n, i) for the lane's elements of C[16, 16].
template <typename Body>
__device__ __forceinline__ void each_element(const Body& body) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) body(n, i);
  }
}
template <int kStride>
__device__ __forceinline__ void load_square(Square& c, const float* tile) {
  each_pair(c, [&](int row, int column, float& first, float& second) {
    const float2 pair = *reinterpret_cast<const float2*>(tile + row * kStride + column);
    first = pair.x, second = pair.y;
  });
}

/// c += A B.
template <typename Math>
__device__ __forceinline__ void add_product(Square& c, const typename Math::A& a,
                                            const typename Math::B (&b)[2]) {
  Math::multiply(c[0], a, b[0]);
  Math::multiply(c[1], a, b[1]);
}

/// <c, tile> of the rows g and g + 8, in every lane of a quad.
template <int kStride>
__device__ __forceinline__ void square_dots(float (&dots)[2], const Square& c, const float* tile) {
  Square other;
  load_square<kStride>(other, tile);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = 0.f;
#pragma unroll
    for (int n = 0; n < 2; ++n)
      sum += c[n][2 * r] * other[n][2 * r] + c[n][2 * r + 1] * other[n][2 * r + 1];
    dots[r] = quad_sum(sum);
  }
}

/// dv of a chunk; returns <dR, v> of row lane / 2.
template <typename S, typename Tiles>
__device__ __forceinline__ float finish_values(const Tiles& tiles, const SweepArgs& args,
                                               const Place& place, int chunk) {
  const int row = lane_id() / kAcross<S::kValues>, token = chunk * kChunk + row;
  const int channel = lane_id() % kAcross<S::kValues> * kPiece;
  float v[kPiece], solved[kPiece], dot = 0.f;
  load_piece(v, args.v, place.element(args.v, token), channel, args.value_dim, args.element,
             place.live(args, token));
  Tf32x3::load_row(solved, tiles.solved_values() + row * S::kValueStride + channel);
  const float write = tiles.write()[row];
#pragma unroll
  for (int i = 0; i < kPiece; ++i) dot += solved[i] * v[i], solved[i] *= write;
  if (token < args.length)
    store_piece(solved, args.dv, place.element(args.dv, token), channel, args.value_dim,
                args.element);
  return sum_across<S::kValues>(dot);
}

/// What a chunk takes from memory, asked for long before it is needed: U and the W before it.
template <typename Math>
struct Remembered {
  typename Math::A written;
  typename Math::B memory[2];

  __device__ __forceinline__ Remembered(const SweepArgs& args, const Place& place, int chunk) {
    const float* at = args.written + place.chunk_index(args, chunk) * kChunk * kChunk;
    written = Math::load_columns_a(at, kChunk);
    Math::load_columns_b(memory, memory_before(args, place, chunk), kChunk);
  }
};

/// From the gradient of a chunk's feature rows, a tile, to that of q or k, which is written. For
/// unit elu features the rows f = phi / s themselves hold the map's slope, min(phi, 1).
template <typename Math, typename S>
__device__ __forceinline__ void finish_inputs(const Team<S>& team, const View& to, const View& from,
                                              const float* gradient, const float* features,
                                              float inverse_sum, const SweepArgs& args,
                                              const Place& place, int chunk) {
  if (args.feature_map != FeatureMap::kElu || !args.unit_features)
    return store_input_gradient<Math>(team, to, from, gradient, args, place, chunk);
  const int row = lane_id() / kAcross<S::kKeys>, token = chunk * kChunk + row;
  const int channel = lane_id() % kAcross<S::kKeys> * kPiece, at = row * S::kKeyStride + channel;
  float df[kPiece], f[kPiece], along = 0.f;
  Tf32x3::load_row(df, gradient + at), Tf32x3::load_row(f, features + at);
#pragma unroll
  for (int i = 0; i < kPiece; ++i) along += df[i] * f[i];
  along = sum_across<S::kKeys>(along);
  const bool live = place.live(args, token);
#pragma unroll
  for (int i = 0; i < kPiece; ++i) df[i] = live ? (df[i] - along) * fminf(f[i], inverse_sum) : 0.f;
  if (token < args.length && channel < args.head_dim)
    store_piece(df, to, place.element(to, token), channel, args.head_dim, args.element);
}

/// The gradients of the rows' numbers take the place of the norms and the overlaps.
template <typename Tiles>
__device__ __forceinline__ void finish_numbers(const Tiles& tiles, const float (&of_queries)[2],
                                               const float (&of_keys)[2], float of_values,
                                               const SweepArgs& args, const Place& place, int chunk,
                                               int first_live) {
  const int r = lane_id() % 4 % 2, row = lane_id() / 4 + 8 * r, token = chunk * kChunk + row;
  const float own_values = __shfl_sync(~0u, of_values, 2 * row);
  if (lane_id() % 4 < 2) {  // the first two lanes of four have a row each
    const RowDots dots{r == 0 ? of_queries[0] : of_queries[1], r == 0 ? of_keys[0] : of_keys[1],
                       own_values};
    const RowGradient gradient = gradient_of_row(dots, tiles.norm()[row], tiles.overlap()[row],
                                                 args, place, token, first_live);
    tiles.norm()[row] = gradient.norm, tiles.overlap()[row] = gradient.overlap;
    if (token < args.length) store_beta_gradient(args, place, token, gradient.beta);
  }
  __syncwarp();
}

/// What the chunk adds to the gradient of the key sums before it, to `sums`.
template <typename S, typename Tiles>
__device__ __forceinline__ void finish_sums(const Tiles& tiles, const LaneRows& of_norm,
                                            const LaneRows& of_overlap) {
  Square keys, queries;
  load_square<S::kKeyStride>(keys, tiles.keys());
  load_square<S::kKeyStride>(queries, tiles.queries());
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    float part[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      part[i] = of_overlap(0) * keys[n][i] - of_norm(0) * queries[n][i] +
                of_overlap(2) * keys[n][i + 2] - of_norm(2) * queries[n][i + 2];
#pragma unroll
      for (int other = 4; other < kWarpSize; other *= 2)
        part[i] += __shfl_xor_sync(~0u, part[i], other);
    }
    if (lane_id() < 4)
      *reinterpret_cast<float2*>(tiles.sums() + n * 8 + lane_id() * 2) =
          make_float2(part[0], part[1]);
  }
}

/// dY, and `read`, the same of dR: q of docs/math.md, 14.
template <typename Math, typename S, typename Tiles>
__device__ __forceinline__ void read_states(Square& dy, Square& read, const Tiles& tiles,
                                            const Remembered<Math>& remembered) {
  const typename Math::A grads = Math::load_rows_a(tiles.values(), S::kValueStride);
  const typename Math::A solved = Math::load_rows_a(tiles.solved_values(), S::kValueStride);
  clear(dy), clear(read);
  add_product<Math>(dy, grads, remembered.memory);
  add_product<Math>(read, solved, remembered.memory);
  const typename Math::B written[2] = {Math::rows_as_b(remembered.written, 0),
                                       Math::rows_as_b(remembered.written, 1)};
  Square inside = {}, erased = {};
  add_product<Math>(inside, grads, written);
  add_product<Math>(erased, solved, written);
  keep_lower(inside, 0);
  keep_lower(erased, -1);
  typename Math::B keys[2];
  Math::load_b_transposed(keys, tiles.keys(), S::kKeyStride);
  add_product<Math>(dy, as_operand<Math>(inside), keys);
  add_product<Math>(read, as_operand<Math>(erased), keys);
}

/// The normaliser's part of dY, and dX as far as it comes from the keys before each row.
template <typename Math, typename S, typename Tiles>
__device__ __forceinline__ void use_key_sums(Square& dx, Square& dy, const Square& read,
                                             const Tiles& tiles, const LaneRows& of_norm,
                                             const LaneRows& of_overlap) {
  Square before, earlier, own;
  const LaneColumns sums_before(tiles.before());
  each_element([&](int n, int i) {
    before[n][i] = sums_before(n, i), earlier[n][i] = off_diagonal(n, i) < 0 ? 1.f : 0.f;
  });
  typename Math::B keys[2];
  Math::load_b_transposed(keys, tiles.keys(), S::kKeyStride);
  add_product<Math>(before, as_operand<Math>(earlier), keys);
  load_square<S::kKeyStride>(own, tiles.keys());
  const LaneRows erase(tiles.erase());
  each_element([&](int n, int i) {
    dy[n][i] -= of_norm(i) * (before[n][i] + own[n][i]);
    dx[n][i] = of_overlap(i) * before[n][i] - erase(i) * read[n][i];
  });
}

/// dX += what comes from the state after the chunk and from later tokens inside it. There the
/// gradient of the key sums, of token t for every key i before it, is a number by which row t of Y
/// or X goes into dx_i: it joins the triangles, which are operands of the same rows.
template <typename Math, typename S, typename Tiles>
__device__ __forceinline__ void add_later(Square& dx, const Tiles& tiles,
                                          const typename Math::A& written) {
  typename Math::B right[2];
  Math::load_columns_b(right, tiles.solved_keys(), S::kKeyStride);  // G
  add_product<Math>(dx, written, right);
  Square from_queries = {}, from_keys = {};
  Math::load_rows_b(right, tiles.values(), S::kValueStride);
  add_product<Math>(from_queries, written, right);
  Math::load_rows_b(right, tiles.solved_values(), S::kValueStride);
  add_product<Math>(from_keys, written, right);
  const LaneColumns of_norm(tiles.norm()), of_overlap(tiles.overlap()), erase(tiles.erase());
  each_element([&](int n, int i) {
    // Rounded as in read_states: these differences can be small against both of their parts.
    from_queries[n][i] = Math::rounded(from_queries[n][i]) - of_norm(n, i);
    from_keys[n][i] = of_overlap(n, i) - erase(n, i) * Math::rounded(from_keys[n][i]);
  });
  keep_upper(from_queries, 0);
  keep_upper(from_keys, 1);
  Math::load_b_transposed(right, tiles.queries(), S::kKeyStride);
  add_product<Math>(dx, as_operand<Math>(from_queries), right);
  Math::load_b_transposed(right, tiles.keys(), S::kKeyStride);
  add_product<Math>(dx, as_operand<Math>(from_keys), right);
}

/// dq, dv and dbeta of a chunk, and `dx` but for the gradient of the key sums after the chunk. Rows
/// are read from shared memory wherever they are used: registers are what limits occupancy.
template <typename Math, typename S, typename Tiles>
__device__ __forceinline__ void finish(Square& dx, const Team<S>& team, const Tiles& tiles,
                                       const Remembered<Math>& remembered, float inverse_sum,
                                       const SweepArgs& args, const Place& place, int chunk,
                                       int first_live) {
  Square dy, read;
  read_states<Math, S>(dy, read, tiles, remembered);
  float of_queries[2], of_keys[2];
  square_dots<S::kKeyStride>(of_queries, dy, tiles.queries());
  square_dots<S::kKeyStride>(of_keys, read, tiles.keys());
  const float of_values = finish_values<S>(tiles, args, place, chunk);
  finish_numbers(tiles, of_queries, of_keys, of_values, args, place, chunk, first_live);
  const LaneRows of_norm(tiles.norm()), of_overlap(tiles.overlap());
  finish_sums<S>(tiles, of_norm, of_overlap);
  use_key_sums<Math, S>(dx, dy, read, tiles, of_norm, of_overlap);
  store_result<S>(tiles.inside(), 0, dy);
  add_later<Math, S>(dx, tiles, remembered.written);
  __syncwarp();
  finish_inputs<Math>(team, args.dq, args.q, tiles.inside(), tiles.queries(), inverse_sum, args,
                      place, chunk);
}

/// dk of a chunk, with the gradient of the key sums after the group, `after`, which becomes that
/// before the group.
template <typename Math, typename Group, typename S>
__device__ __forceinline__ void finish_keys(Square& dx, LaneColumns& after, const Team<S>& team,
                                            float inverse_sum, const SweepArgs& args,
                                            const Place& place, int chunk, int count) {
#pragma unroll
  for (int i = S::kGroup - 1; i >= 0; --i) {
    if (i >= count) continue;
    if (i == team.index) each_element([&](int n, int e) { dx[n][e] += after(n, e); });
    after.add(LaneColumns(Group::of(i).sums()));
  }
  if (team.index >= count) return;
  const typename Group::Tiles tiles = Group::of(team.index);
  store_result<S>(tiles.system(), 0, dx);
  __syncwarp();
  finish_inputs<Math>(team, args.dk, args.k, tiles.system(), tiles.keys(), inverse_sum, args, place,
                      chunk);
}

/// From U and the states before every chunk to all gradients.
template <typename Math, typename S>
__device__ void walk_back(const SweepArgs& args, const Place& place, const Channels<S>& channels) {
  static_assert(S::kKeys == 16 && S::kValues == 16 && S::kTeam == 1);
  static_assert(kSystemStride == S::kKeyStride && kSquareStride == S::kKeyStride);
  using Group = GroupTiles<S, true>;
  const Team<S> team;
  const typename Group::Tiles tiles = Group::of(team.index);
  const int first_live = first_live_token(args, place);
  StateRows<Math, S::kKeys> state(args.head_dim);  // the first warp's
  if (team.thread < S::kKeys) tiles.sums()[team.thread] = 0.f;
  __syncwarp();
  LaneColumns after(tiles.sums());
#pragma unroll 1
  for (int end = place.end; end > place.begin; end -= S::kGroup) {
    const int first = max(end - S::kGroup, place.begin), count = end - first;
    const int chunk = min(first + team.index, end - 1);
    const bool busy = team.index < count;
    InverseSums inverse;
    if (busy) inverse = prepare_backwards<Math>(team, tiles, args, place, channels, chunk);
    if (busy && team.thread < S::kKeys) {
      tiles.before()[team.thread] =
          args.sums_before[place.chunk_index(args, chunk) * S::kKeys + team.thread];
    }
    const Remembered<Math> remembered(args, place, chunk);
    __syncthreads();
    if (team.index == 0) {
#pragma unroll 1
      for (int i = count - 1; i >= 0; --i)
        step_backwards<Math, Walk::kLeft, S>(state, Group::of(i), args, place, channels, 0,
                                             first + i);
    }
    __syncthreads();
    Square dx;
    if (busy) finish(dx, team, tiles, remembered, inverse.queries, args, place, chunk, first_live);
    __syncthreads();
    finish_keys<Math, Group>(dx, after, team, inverse.keys, args, place, chunk, count);
    // The next group writes its sums only after other barriers.
  }
}

}  // namespace fmmformer::cuda::fast_weight
