// SPDX-License-Identifier: Apache-2.0
// The state of heads of up to 128 channels: a warp has sixteen of its rows, in fp32, in registers.
// Rows are the feature channels, or in the forward sweep, which sums over those, channels of v.
// They are held times the power of two that operands have, which changes now and then.
#pragma once

#include "attention/fmm/cuda/chunks_fp32/wide/operands.cuh"

namespace fmmformer::cuda::chunks_fp32 {

template <typename G_, Sweep kSweep>
struct OwnState {
  using G = G_;
  using M = Memory<G, kSweep>;
  using W = Walk<G, kSweep>;
  static constexpr bool kOfValues = kSweep == Sweep::kForward;
  Block part[G::kBlocks];
  int shift = 0;

  /// What a segment begins with. A barrier must follow.
  __device__ void begin(const W& walk) {
    const SweepArgs& args = walk.args;
    const StartEntries start(args, walk.place);
    clear(part);
    const auto add = [&](int i) {
      const float* entry = args.start.sums + (start.first + i) * entry_size(args.start);
      each_number(walk, args.start, [&](int64_t at, float& x) { x += entry[at]; });
    };
    int i = start.count % 2;
    if (i == 1) add(0);
#pragma unroll 1
    for (; i < start.count; i += 2) add(i), add(i + 1);  // more loads under way
    each_key_sum([&](int channel, float& number) {
      number = 0.f;
      for (int i = 0; i < start.count; ++i)
        number += args.start.key_sums[(start.first + i) * args.start.maps * G::kDim +
                                      args.first_map * G::kDim + channel];
    });
    W::Scales::raise_state_maximum(walk.set(), 0, largest());
  }
  /// The state becomes entry `entry` of args.made.
  __device__ void store(const W& walk, int64_t entry) {
    const SweepArgs& args = walk.args;
    float* to = args.made.sums + entry * entry_size(args.made);
    const float scale = power_of_2(-shift);
    each_number(walk, args.made, [&](int64_t at, float& x) { to[at] = scale * x; });
    each_key_sum([&](int channel, float& number) {
      args.made.key_sums[entry * args.made.maps * G::kDim + args.first_map * G::kDim + channel] =
          number;
    });
  }

  /// The shift for the walk's chunk, the same in all warps: another one where numbers would be too
  /// large, or smaller than they might be.
  __device__ __forceinline__ void shift_part(const W& walk) {
    constexpr int kSpare = 6;
    const int best = shift_for(W::Scales::state_maximum(walk.set(), 0));
    if (best >= shift && best <= shift + kSpare) return;
    const float scale = power_of_2(best - shift);
    shift = best;
#pragma unroll
    for (int i = 0; i < 8 * G::kBlocks; ++i) part[i / 8][i / 4 % 2][i % 4] *= scale;
  }
  /// Block n of the rows as an operand.
  __device__ __forceinline__ Right operand(int n) const {
    const Left x = split_result(part[n], 1.f);  // the sides differ in the order of registers
    return {{x.high[0], x.high[2], x.high[1], x.high[3]}, {x.low[0], x.low[2], x.low[1], x.low[3]}};
  }
  /// sums += (rows of the tiles from `tiles` on) (own rows of the state)^T. See(n, operand(n)) for
  /// every n.
  template <typename See>
  __device__ __forceinline__ void multiply(Block (&sums)[G::kTiles], int tiles,
                                           const Loader<G>& load, const See& see) const {
#pragma unroll
    for (int n = 0; n < G::kBlocks; ++n) {
      const Right columns[1] = {operand(n)};
      see(n, columns[0]);
#pragma unroll
      for (int i = 0; i < G::kTiles; ++i)
        add_products(sums + i, load.left(tiles + i * G::kTile, n), columns);
    }
  }

  __device__ __forceinline__ void multiply(Block (&sums)[G::kTiles], int tiles,
                                           const Loader<G>& load) const {
    multiply(sums, tiles, load, [](int, const Right&) {});
  }

  /// Adds the walk's chunk, summed up by itself first: sums of a long walk are rounded this way.
  __device__ __forceinline__ void add(const W& walk, const Loader<G>& load) {
    const int row_block = walk.place.warp;
    const auto rows = [&](int t) { return kOfValues ? walk.tile(1, t) : walk.feature_tile(0, t); };
    const auto columns = [&](int t) {
      return kOfValues ? walk.feature_tile(0, t) : walk.tile(1, t);
    };
    const Left left[G::kTiles] = {load.turned_left(rows(0), row_block),
                                  load.turned_left(rows(1), row_block)};
    const float scale = power_of_2(shift - walk.shift(kFeatureRows) - walk.shift(kBandRows + 1));
#pragma unroll
    for (int n = 0; n < G::kBlocks; ++n) {
      Block sum[1];
      clear(sum);
#pragma unroll
      for (int t = 0; t < G::kTiles; ++t) {
        const Right right[1] = {load.turned_right(columns(t), n)};
        add_products(sum, left[t], right);
      }
      add_total(part[n], sum[0], scale);
    }
    add_key_sums(walk, left, load);
    if (W::Scales::seeks_state_maxima(walk.chunk)) {
      W::Scales::raise_state_maximum(walk.set() ^ 1, 0, power_of_2(-shift) * largest());
    } else {
      W::Scales::set_state_maximum(
          walk.set() ^ 1, 0,
          W::Scales::state_maximum(walk.set(), 0) +
              G::kChunk * walk.largest_feature(0) * walk.maximum(kBandRows + 1));
    }
  }

 private:
  static __device__ __forceinline__ int64_t entry_size(const States& states) {
    return int64_t(states.maps) * G::kDim * states.row_length;
  }
  /// body(place in an entry, number) for what this lane has.
  template <typename Body>
  __device__ __forceinline__ void each_number(const W& walk, const States& states,
                                              const Body& body) {
    const int row = walk.place.warp * kBlockDim + row_of(0), column = column_of(0, 0);
    const int64_t of_feature = states.row_length;
    const int64_t of_row = kOfValues ? 1 : of_feature, of_column = kOfValues ? of_feature : 1;
    const int64_t first =
        int64_t(walk.args.first_map) * G::kDim * of_feature + row * of_row + column * of_column;
#pragma unroll
    for (int i = 0; i < 8 * G::kBlocks; ++i) {
      const int n = i / 8, half = i / 4 % 2, r = i % 4 / 2;
      body(first + r * 8 * of_row + (n * kBlockDim + half * 8 + i % 2) * of_column,
           part[n][half][i % 4]);
    }
  }
  template <typename Body>
  static __device__ __forceinline__ void each_key_sum(const Body& body) {
    if (threadIdx.x < G::kDim) body(threadIdx.x, *shared_at(M::kKeySums + threadIdx.x));
  }
  __device__ __forceinline__ float largest() const {
    float result = 0.f;
#pragma unroll
    for (int i = 0; i < 8 * G::kBlocks; ++i)
      result = fmaxf(result, fabsf(part[i / 8][i / 4 % 2][i % 4]));
    return result;
  }
  /// Sums of feature rows, sixteen channels of them, times dots where they are queries'.
  static __device__ __forceinline__ void add_key_sums(const W& walk, const Left (&rows)[G::kTiles],
                                                      const Loader<G>& load) {
    const int block = walk.place.warp;
    float* const sums = shared_at(M::kKeySums + block * kBlockDim);
    if constexpr (kOfValues) {
      constexpr uint32_t kAllOnes[4] = {kHalfOnes, kHalfOnes, kHalfOnes, kHalfOnes};
      Block sum[1];
      clear(sum);
#pragma unroll
      for (int t = 0; t < G::kTiles; ++t) {
        const Right features[1] = {load.turned_right(walk.feature_tile(0, t), block)};
        add_exact_products(sum, kAllOnes, features);
      }
      if (lane_id() >= 4) return;
      const float scale = power_of_2(-walk.shift(kFeatureRows));
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[column_of(i / 2, i)] += scale * sum[0][i / 2][i % 2];
    } else {
      float sum[4] = {};
#pragma unroll
      for (int t = 0; t < G::kTiles; ++t)
        add_feature_sums<G, kSweep>(sum, rows[t], walk.dot_pairs(0), t);
      if (lane_id() % 4 != 0) return;
      const float scale =
          power_of_2(-walk.shift(kFeatureRows) - (M::kOfQueries ? dot_shift(walk, 0) : 0));
#pragma unroll
      for (int r = 0; r < 2; ++r) sums[row_of(2 * r)] += scale * sum[2 * r];
    }
  }
};

}  // namespace fmmformer::cuda::chunks_fp32
