// SPDX-License-Identifier: Apache-2.0
// The state: sums over tokens of (feature row) x (row of v or grad_out) and of feature rows, the
// latter times dots where they are queries'. It lies in shared memory, unpadded; a warp adds to
// its own part of it.
#pragma once

#include "attention/fmm/cuda/chunks_fp32/rows.cuh"
#include "attention/fmm/cuda/start_entries.cuh"

namespace fmmformer::cuda::chunks_fp32 {

template <typename G, Sweep kSweep>
struct State {
  using M = Memory<G, kSweep>;
  // A warp's part: so many tiles of sixteen feature channels, and blocks of v's channels.
  static constexpr int kDown = G::kBlocks / 4, kAcross = G::kBlocks / 2;
  static_assert(kDown * kAcross * kWarps == G::kBlocks * G::kBlocks);

  /// Where a number of the state lies in shared memory.
  static __device__ __forceinline__ int place_of(int map, int row, int column) {
    return M::kState + map * M::kStateOfMap + row * G::kDim + (column ^ key_of_row(row) * kPiece);
  }

  /// Adds the walk's chunk, summed up by itself first: sums of a long walk are rounded this way.
  static __device__ __forceinline__ void add(const Walk<G, kSweep>& walk, const Loader<G>& load) {
    const int first_block = walk.place.warp / 4 * kAcross;
#pragma unroll 1
    for (int m = 0; m < kDown; ++m)
      add_rows(walk, load, walk.place.warp % 4 * kDown + m, first_block);
  }

  /// What a segment begins with. A barrier must follow.
  static __device__ void begin(const SweepArgs& args, const Place<G>& place) {
    const StartEntries start(args, place);
    each_piece(args, args.start, [&](int64_t offset, int64_t of_entry, float4* piece) {
      float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 4
      for (int i = 0; i < start.count; ++i) {
        const float4 more = *reinterpret_cast<const float4*>(args.start.sums +
                                                             (start.first + i) * of_entry + offset);
        sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
      }
      *piece = sum;
    });
    each_key_sum(args, args.start, [&](int64_t offset, int64_t of_entry, float* number) {
      float sum = 0.f;
#pragma unroll 4
      for (int i = 0; i < start.count; ++i)
        sum += args.start.key_sums[(start.first + i) * of_entry + offset];
      *number = sum;
    });
  }
  /// The state becomes entry `entry` of args.made.
  static __device__ void store(const SweepArgs& args, int64_t entry) {
    each_piece(args, args.made, [&](int64_t offset, int64_t of_entry, float4* piece) {
      *reinterpret_cast<float4*>(args.made.sums + entry * of_entry + offset) = *piece;
    });
    each_key_sum(args, args.made, [&](int64_t offset, int64_t of_entry, float* number) {
      args.made.key_sums[entry * of_entry + offset] = *number;
    });
  }

  /// The key sums of this lane's two columns, for each eight columns of a slice.
  static __device__ __forceinline__ float2 key_sums_of(int map, int slice, int n) {
    return *reinterpret_cast<const float2*>(
        shared_at(M::kKeySums + map * G::kDim + slice * kSlice + n * 8 + column_of(0, 0)));
  }
  /// Two numbers of each half of a tile's tokens: those of this lane's columns.
  static __device__ __forceinline__ void column_numbers(float2 (&numbers)[2],
                                                        const float* of_tile) {
    const float* mine = of_tile + column_of(0, 0);
    numbers[0] = *reinterpret_cast<const float2*>(mine);
    numbers[1] = *reinterpret_cast<const float2*>(mine + 8);
  }

 private:
  /// ... of sixteen feature channels of every map.
  static __device__ __forceinline__ void add_rows(const Walk<G, kSweep>& walk,
                                                  const Loader<G>& load, int tile,
                                                  int first_block) {
    Sum sums[G::kMaps][kAcross];
    float key_sums[G::kMaps][2];
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l) clear(sums[l]), key_sums[l][0] = key_sums[l][1] = 0.f;
    // Elsewhere code of this length would crowd the instruction cache.
    constexpr int kAtOnce = M::kSums ? G::kTiles : 1;
#pragma unroll kAtOnce
    for (int t = 0; t < G::kTiles; ++t) {
      Operand values[kAcross];
#pragma unroll
      for (int n = 0; n < kAcross; ++n) values[n] = load.paired(walk.tile(1, t), first_block + n);
#pragma unroll
      for (int l = 0; l < G::kMaps; ++l) {
        Values f;
        load.paired_values(f, walk.feature_tile(l, t), tile);
        float2 dots[2] = {make_float2(1.f, 1.f), make_float2(1.f, 1.f)};
        if constexpr (M::kOfQueries) column_numbers(dots, walk.numbers(kDot<G> + l, t));
#pragma unroll
        for (int i = 0; i < 8; ++i)
          key_sums[l][i % 2] += f[i / 4][i % 4] * (i % 4 / 2 ? dots[i / 4].y : dots[i / 4].x);
        add_products(sums[l], split(f), values);
      }
    }
    const int g = lane_id() / 4;
    const int rows = M::kState + (tile * kBlockDim + g) * G::kDim;
    const int column = (first_block * kBlockDim + column_of(0, 0)) ^ key_of_row(g) * kPiece;
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l) {
#pragma unroll
      for (int i = 0; i < 4 * kAcross; ++i) {
        const int n = i / 2, r = i % 2;  // eight columns, eight rows
        float2* at = reinterpret_cast<float2*>(
            shared_at(rows + l * M::kStateOfMap + r * 8 * G::kDim + (column ^ n * 8)));
        const float* high = sums[l][n / 2].high[n % 2] + 2 * r;
        const float* low = sums[l][n / 2].low[n % 2] + 2 * r;
        float2 both = *at;
        both.x += high[0] + low[0], both.y += high[1] + low[1];
        *at = both;
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float sum = quad_sum(key_sums[l][r]);
        if (first_block == 0 && lane_id() % 4 == 0)
          *shared_at(M::kKeySums + l * G::kDim + tile * kBlockDim + row_of(2 * r)) += sum;
      }
    }
  }
  /// body(place in an entry, size of an entry, where) for a thread's pieces of the state.
  template <typename Body>
  static __device__ __forceinline__ void each_piece(const SweepArgs& args, const States& states,
                                                    const Body& body) {
    constexpr int kPieces = G::kDim / kPiece;
    const int64_t of_entry = int64_t(states.maps) * G::kDim * states.row_length;
#pragma unroll 1
    for (int i = threadIdx.x; i < G::kMaps * G::kDim * kPieces; i += kThreads) {
      const int row = i / kPieces % G::kDim, map = i / kPieces / G::kDim;
      const int column = i % kPieces * kPiece;
      const int64_t offset =
          (int64_t(args.first_map + map) * G::kDim + row) * states.row_length + column;
      body(offset, of_entry, reinterpret_cast<float4*>(shared_at(place_of(map, row, column))));
    }
  }
  template <typename Body>
  static __device__ __forceinline__ void each_key_sum(const SweepArgs& args, const States& states,
                                                      const Body& body) {
    for (int i = threadIdx.x; i < G::kMaps * G::kDim; i += kThreads)
      body(args.first_map * G::kDim + i, int64_t(states.maps) * G::kDim,
           shared_at(M::kKeySums + i));
  }
};

}  // namespace fmmformer::cuda::chunks_fp32
