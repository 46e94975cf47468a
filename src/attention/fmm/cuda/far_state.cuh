// SPDX-License-Identifier: Apache-2.0
// The running far state of a thread block: sums over tokens of (feature row) x (value row), in the
// registers of its warps, with a copy in shared memory that products read.
#pragma once

#include "attention/fmm/cuda/tile.cuh"

namespace fmmformer::cuda {

template <typename G>
struct FarState {
  static constexpr int kRowTiles = G::kMaps * G::kKeySteps, kColumnTiles = G::kValueTiles;
  // The warps share the state as a grid.
  static constexpr int kWarpsDown = kRowTiles % G::kWarps == 0 ? G::kWarps
                                    : kRowTiles % 4 == 0       ? 4
                                    : kRowTiles % 2 == 0       ? 2
                                                               : 1;
  static constexpr int kWarpsAcross = G::kWarps / kWarpsDown;
  static constexpr int kDown = kRowTiles / kWarpsDown;
  static constexpr int kAcross = kColumnTiles > kWarpsAcross ? kColumnTiles / kWarpsAcross : 1;
  static constexpr int kSharedSize =
      G::kMaps * G::kKeyDim * G::kValueStride;  // elements of the copy

  float sums[kDown][kAcross][4];
  float key_sums[kDown][4];  // every column the same; read from and written to the first alone
  int first_row_tile, first_column_tile;
  bool busy, first_across;

  __device__ FarState() {
    const int warp = threadIdx.x / kWarpSize;
    first_row_tile = warp % kWarpsDown * kDown, first_column_tile = warp / kWarpsDown * kAcross;
    busy = first_column_tile < kColumnTiles, first_across = first_column_tile == 0;
#pragma unroll
    for (int m = 0; m < kDown; ++m) {
      clear(sums[m]);
#pragma unroll
      for (int i = 0; i < 4; ++i) key_sums[m][i] = 0.f;
    }
  }

  /// sums += features^T values, key_sums += features^T vector. features:
  /// [kMaps][kRows][kKeyStride]; values: [kRows][kValueStride]; vector: [kMaps][kRows], or none for
  /// ones.
  __device__ void add(const typename G::Elem* features, const typename G::Elem* values,
                      const float* vector) {
    using Math = typename G::Math;
    if (!busy) return;
    const int t = lane_id() % 4;
#pragma unroll 1
    for (int step = 0; step < G::kRows / 16; ++step) {
      typename Math::B b[kAcross];
      const typename G::Elem* value_rows =
          values + step * 16 * G::kValueStride + first_column_tile * 8;
      if constexpr (kAcross == 1) {
        b[0] = Math::load_b_transposed(value_rows, G::kValueStride);
      } else {
#pragma unroll
        for (int n = 0; n < kAcross; n += 2) {
          typename Math::B two[2];
          Math::load_b_transposed(two, value_rows + n * 8, G::kValueStride);
          b[n] = two[0], b[n + 1] = two[1];
        }
      }
#pragma unroll
      for (int m = 0; m < kDown; ++m) {
        const int tile = first_row_tile + m;
        const typename Math::A a =
            Math::load_a_transposed(features + tile / G::kKeySteps * G::kFeatureTile +
                                        step * 16 * G::kKeyStride + tile % G::kKeySteps * 16,
                                    G::kKeyStride);
#pragma unroll
        for (int n = 0; n < kAcross; ++n) Math::multiply(sums[m][n], a, b[n]);
        if (first_across) {
          if (vector) {
            const float* at = vector + tile / G::kKeySteps * G::kRows + step * 16 + 2 * t;
            Math::multiply_vector(key_sums[m], a, {at[0], at[1], at[8], at[9]});
          } else {
            Math::multiply(key_sums[m], a, Math::make_b({1.f, 1.f, 1.f, 1.f}));
          }
        }
      }
    }
  }

  /// The copy for products, [kMaps * kKeyDim][kValueStride] and [kMaps * kKeyDim]. The key sums
  /// also go into the first column of the rows' padding, and what rounding leaves of them into the
  /// second: a product with the state then yields the row sums as well (clear_padding has made the
  /// other columns 0). Barriers are the caller's.
  __device__ void publish(typename G::Elem* shared_sums, float* shared_key_sums) const {
    each([&](int row, int column, const float* pair) {
      G::Math::store_pair(shared_sums + row * G::kValueStride + column, pair[0], pair[1]);
    });
    each_key_sum([&](int row, const float& sum) {
      shared_key_sums[row] = sum;
      float high, low;
      G::Math::split(sum, high, low);
      G::Math::store_pair(shared_sums + row * G::kValueStride + G::kValueDim, high, low);
    });
  }

  /// Adds the states that args.start names.
  __device__ void load(const SweepArgs& args, const Place<G>& place) {
    const States& states = args.start;
    int begin = 0, end = 0;
    switch (states.source) {
      case StateSource::kNothing:
        return;
      case StateSource::kOwn:
        begin = place.segment, end = begin + 1;
        break;
      case StateSource::kBefore:
        end = place.segment;
        break;
      case StateSource::kAfter:
        begin = place.segment + 1, end = args.segments;
        break;
      case StateSource::kAll:
        end = args.segments;
        break;
      case StateSource::kPair:
        end = 1;
        break;
    }
    const int64_t of_pair =
        states.source == StateSource::kPair ? place.pair : int64_t(place.pair) * args.segments;
    for (int s = begin; s < end; ++s) {
      const int64_t entry = of_pair + s;
      each([&](int row, int column, float* pair) {
        int64_t index;
        if (!entry_index(args, states, entry, row, index)) return;
        const float* from = states.sums + index * states.row_length + column;
        if (column < args.value_dim) pair[0] += from[0];
        if (column + 1 < args.value_dim) pair[1] += from[1];
      });
      each_key_sum([&](int row, float& sum) {
        int64_t index;
        if (entry_index(args, states, entry, row, index)) sum += states.key_sums[index];
      });
    }
  }

  /// Writes entry `entry` of args.made.
  __device__ void store(const SweepArgs& args, int64_t entry) {
    const States& states = args.made;
    each([&](int row, int column, const float* pair) {
      int64_t index;
      if (!entry_index(args, states, entry, row, index)) return;
      float* to = states.sums + index * states.row_length + column;
      if (column < args.value_dim) to[0] = pair[0];
      if (column + 1 < args.value_dim) to[1] = pair[1];
    });
    each_key_sum([&](int row, const float& sum) {
      int64_t index;
      if (entry_index(args, states, entry, row, index)) states.key_sums[index] = sum;
    });
  }

 private:
  // The place of a row of the padded state among [entries, maps, D], if it has one.
  static __device__ bool entry_index(const SweepArgs& args, const States& states, int64_t entry,
                                     int row, int64_t& index) {
    const int map = row / G::kKeyDim, channel = row % G::kKeyDim;
    index = (entry * states.maps + args.first_map + map) * args.head_dim + channel;
    return map < args.maps && channel < args.head_dim;
  }
  template <typename Self, typename Body>
  static __device__ void visit(Self& self, const Body& body) {
    if (!self.busy) return;
    const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int m = 0; m < kDown; ++m) {
#pragma unroll
      for (int n = 0; n < kAcross; ++n) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          body((self.first_row_tile + m) * 16 + g + 8 * r, (self.first_column_tile + n) * 8 + 2 * t,
               &self.sums[m][n][2 * r]);
        }
      }
    }
  }
  template <typename Self, typename Body>
  static __device__ void visit_key_sums(Self& self, const Body& body) {
    if (!self.first_across || lane_id() % 4 != 0) return;
#pragma unroll
    for (int m = 0; m < kDown; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        body((self.first_row_tile + m) * 16 + lane_id() / 4 + 8 * r, self.key_sums[m][2 * r]);
      }
    }
  }
  template <typename Body>
  __device__ void each(const Body& body) {
    visit(*this, body);
  }
  template <typename Body>
  __device__ void each(const Body& body) const {
    visit(*this, body);
  }
  template <typename Body>
  __device__ void each_key_sum(const Body& body) {
    visit_key_sums(*this, body);
  }
  template <typename Body>
  __device__ void each_key_sum(const Body& body) const {
    visit_key_sums(*this, body);
  }
};

}  // namespace fmmformer::cuda
