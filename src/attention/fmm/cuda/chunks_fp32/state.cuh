// SPDX-License-Identifier: Apache-2.0
// The state: sums over tokens of (feature row) x (row of v or grad_out) and of feature rows, the
// latter times dots where they are queries'. A warp has its part of the former in registers, in
// fp32, and writes it to shared memory as pairs, once a chunk; those lie there unpadded. Sums of
// feature rows are in shared memory alone, in fp32.
#pragma once

#include "attention/fmm/cuda/chunks_fp32/rows.cuh"
#include "attention/fmm/cuda/start_entries.cuh"

namespace fmmformer::cuda::chunks_fp32 {

/// sums += features of tile t, times their tokens' dots, if any; every column the same.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void add_feature_sums(float (&sums)[4], const Left& f, int dots, int t) {
  using M = Memory<G, kSweep>;
  if constexpr (M::kOfQueries) {
    uint32_t high[2], low[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 both = *reinterpret_cast<const float2*>(
          shared_at(dots + t * kBlockDim + i * kEight + column_of(0, 0)));
      high[i] = __float_as_uint(both.x), low[i] = __float_as_uint(both.y);
    }
    step(sums, f.low, high[0], high[1]);
    step(sums, f.high, low[0], low[1]);
    step(sums, f.high, high[0], high[1]);
  } else {
    step(sums, f.low, kHalfOnes, kHalfOnes);
    step(sums, f.high, kHalfOnes, kHalfOnes);
  }
}

template <typename G, Sweep kSweep>
struct State {
  using M = Memory<G, kSweep>;
  using W = Walk<G, kSweep>;
  // A warp's part: so many tiles of sixteen feature channels, and blocks of v's channels.
  static constexpr int kRowParts = 4, kDown = G::kBlocks / kRowParts, kAcross = G::kBlocks / 2;
  static_assert(kDown * kAcross * kWarps == G::kBlocks * G::kBlocks);
  // Maps whose products share operands; wide states leave no registers for two.
  static constexpr int kTogether = G::kDim <= 64 ? G::kMaps : 1;
  const int first_row, first_block;  // of the part
  Block part[G::kMaps][kDown][kAcross];
  float bound[G::kMaps];  // what the state is at most, in all parts
  bool measured = false;  // whether that is known

  __device__ explicit State(const Place<G>& place)
      : first_row(place.warp % kRowParts * kDown * kBlockDim),
        first_block(place.warp / kRowParts * kAcross) {}

  /// Adds the walk's chunk, summed up by itself first: sums of a long walk are rounded this way.
  __device__ __forceinline__ void add(const W& walk, const Loader<G>& load) {
#pragma unroll
    for (int m = 0; m < kDown; ++m) {
#pragma unroll
      for (int l = 0; l < G::kMaps; l += kTogether) add_rows(walk, load, m, l);
    }
    if constexpr (!M::kSums) {
#pragma unroll
      for (int l = 0; l < G::kMaps; ++l)
        bound[l] += G::kChunk * walk.largest_feature(l) * walk.maximum(kBandRows + 1);
    }
  }
  /// Writes the part to shared memory, as pairs. In some chunks the largest number is sought first,
  /// with a barrier; elsewhere a bound of it, one addition a chunk, will do.
  __device__ __forceinline__ void show(const W& walk) {
    if (!measured || W::Scales::seeks_state_maxima(walk.chunk)) {
      raise_maxima();
      walk.place.meet_walkers();
#pragma unroll
      for (int l = 0; l < G::kMaps; ++l) bound[l] = W::Scales::state_maximum(0, l);
      measured = true;
    }
    write_pairs();
  }
  /// Forgets what was sought; between barriers after show() and before the next.
  static __device__ __forceinline__ void clear_maxima() { W::Scales::clear_state_maxima(0); }

  /// What a segment begins with.
  __device__ void begin(const SweepArgs& args, const W& walk) {
    const StartEntries start(args, walk.place);
#pragma unroll
    for (int i = 0; i < G::kMaps * kDown; ++i) clear(part[i / kDown][i % kDown]);
    static_assert(G::kMaps * G::kDim <= kThreads);
    float key_sum = 0.f;
#pragma unroll 2
    for (int i = 0; i < start.count; ++i) {
      each_key_sum(args, args.start, [&](int64_t offset, int64_t of_entry, float*) {
        key_sum += args.start.key_sums[(start.first + i) * of_entry + offset];
      });
      each_pair(args, args.start, [&](int64_t offset, int64_t of_entry, float& x, float& y) {
        const float2 more = *reinterpret_cast<const float2*>(args.start.sums +
                                                             (start.first + i) * of_entry + offset);
        x += more.x, y += more.y;
      });
    }
    each_key_sum(args, args.start, [&](int64_t, int64_t, float* number) { *number = key_sum; });
  }
  /// The state becomes entry `entry` of args.made.
  __device__ void store(const SweepArgs& args, int64_t entry) {
    each_pair(args, args.made, [&](int64_t offset, int64_t of_entry, float& x, float& y) {
      *reinterpret_cast<float2*>(args.made.sums + entry * of_entry + offset) = make_float2(x, y);
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
  /// ... of sixteen feature channels of kTogether maps from `first` on.
  __device__ __forceinline__ void add_rows(const W& walk, const Loader<G>& load, int m, int first) {
    const int tile = first_row / kBlockDim + m;
    // Of the warps with the same features, one sums them up.
    const auto sums_features = [&](int l) {
      return first_block / kAcross == l % (G::kBlocks / kAcross);
    };
    Block sums[kTogether][kAcross];
    float key_sums[kTogether][4];
#pragma unroll
    for (int l = 0; l < kTogether; ++l) {
      clear(sums[l]);
#pragma unroll
      for (int i = 0; i < 4; ++i) key_sums[l][i] = 0.f;
    }
    // Elsewhere code of this length would crowd the instruction cache.
    constexpr int kAtOnce = !M::kSums ? 2 : G::kDim == 128 && G::kMaps == 2 ? 1 : G::kTiles;
#pragma unroll kAtOnce
    for (int t = 0; t < G::kTiles; ++t) {
      Right values[kAcross];
#pragma unroll
      for (int n = 0; n < kAcross; ++n)
        values[n] = load.turned_right(walk.tile(1, t), first_block + n);
#pragma unroll
      for (int l = first; l < first + kTogether; ++l) {
        const Left f = load.turned_left(walk.feature_tile(l, t), tile);
        add_products(sums[l - first], f, values);
        if (sums_features(l))
          add_feature_sums<G, kSweep>(key_sums[l - first], f, walk.dot_pairs(l), t);
      }
    }
#pragma unroll
    for (int l = first; l < first + kTogether; ++l) {
      const int shift = walk.shift(kFeatureRows + l);
      add_totals(part[l][m], sums[l - first], power_of_2(-shift - walk.shift(kBandRows + 1)));
      if (!sums_features(l) || lane_id() % 4 != 0) continue;
      const float scale = power_of_2(-shift - (M::kOfQueries ? dot_shift(walk, l) : 0));
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        *shared_at(M::kKeySums + l * G::kDim + tile * kBlockDim + row_of(2 * r)) +=
            scale * key_sums[l - first][2 * r];
      }
    }
  }
  __device__ __forceinline__ void raise_maxima() const {
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l) {
      float largest = 0.f;
#pragma unroll
      for (int i = 0; i < kDown * kAcross * 8; ++i)
        largest =
            fmaxf(largest, fabsf(part[l][i / 8 / kAcross][i / 8 % kAcross][i / 4 % 2][i % 4]));
      W::Scales::raise_state_maximum(0, l, largest);
    }
  }
  __device__ __forceinline__ void write_pairs() const {
    const int g = lane_id() / 4, key = key_of_row(g);
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l) {
      const int shift = shift_for(bound[l]);
      W::Scales::set_state_shift(l, shift);
      const float scale = power_of_2(shift);
      const int rows = M::kState + l * M::kStateOfMap + (first_row + g) * G::kDim + lane_id() % 4;
#pragma unroll
      for (int i = 0; i < kDown * kAcross * 4; ++i) {
        const int m = i / 4 / kAcross, n = i / 4 % kAcross, half = i % 4 / 2, r = i % 2;
        const float* from = part[l][m][n][half] + 2 * r;
        uint32_t high, low;
        split(high, low, scale * from[0], scale * from[1]);
        const int column = ((first_block + n) * kBlockDim + half * kEight) ^ key;
        const int row = rows + (m * kBlockDim + r * 8) * G::kDim;
        *shared_at(row + column) = __uint_as_float(high);
        *shared_at(row + (column ^ kLastParts)) = __uint_as_float(low);
      }
    }
  }
  /// body(place in an entry, size of an entry, two numbers) for what this lane has of the part.
  template <typename Body>
  __device__ __forceinline__ void each_pair(const SweepArgs& args, const States& states,
                                            const Body& body) {
    const int64_t of_entry = int64_t(states.maps) * G::kDim * states.row_length;
    const int64_t first =
        (int64_t(args.first_map) * G::kDim + first_row + row_of(0)) * states.row_length +
        first_block * kBlockDim + column_of(0, 0);
#pragma unroll
    for (int i = 0; i < G::kMaps * kDown * kAcross * 4; ++i) {
      const int half = i % 4 / 2, r = i % 2, n = i / 4 % kAcross, m = i / 4 / kAcross % kDown,
                l = i / 4 / kAcross / kDown;
      float* pair = part[l][m][n][half] + 2 * r;
      body(first + (l * G::kDim + m * kBlockDim + r * 8) * states.row_length + n * kBlockDim +
               half * 8,
           of_entry, pair[0], pair[1]);
    }
  }
  template <typename Body>
  static __device__ __forceinline__ void each_key_sum(const SweepArgs& args, const States& states,
                                                      const Body& body) {
    const int i = threadIdx.x;
    if (i < G::kMaps * G::kDim)
      body(args.first_map * G::kDim + i, int64_t(states.maps) * G::kDim,
           shared_at(M::kKeySums + i));
  }
};

}  // namespace fmmformer::cuda::chunks_fp32
