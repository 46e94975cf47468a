// SPDX-License-Identifier: Apache-2.0
// A far role's state, in registers: sums over tokens of (feature row) x (value row) for its part of
// the feature channels and its slice of v's, and sums of feature rows alone.
#pragma once

#include "attention/fmm/cuda/roles/shape.cuh"

namespace fmmformer::cuda::roles {

/// The entries of args.start that a segment begins with: `count` from `first` on.
struct StartEntries {
  int64_t first;
  int count;

  template <typename G>
  __device__ StartEntries(const SweepArgs& args, const Place<G>& place) {
    const int64_t own = int64_t(place.pair) * args.segments;
    switch (args.start.source) {
      case StateSource::kNothing:
        first = 0, count = 0;
        break;
      case StateSource::kOwn:
        first = own + place.segment, count = 1;
        break;
      case StateSource::kBefore:
        first = own, count = place.segment;
        break;
      case StateSource::kAfter:
        first = own + place.segment + 1, count = args.segments - place.segment - 1;
        break;
      case StateSource::kAll:
        first = own, count = args.segments;
        break;
      case StateSource::kPair:
        first = place.pair, count = 1;
        break;
    }
  }
};

/// kKeysAreRows: blocks [part / 16][slice / 16] with feature channels as rows; else the other way
/// round. Both are fragments for a product over their columns.
template <typename G, bool kKeysAreRows>
struct State {
  static constexpr int kDown = kKeysAreRows ? G::kPartBlocks : G::kSliceBlocks;
  static constexpr int kAcross = kKeysAreRows ? G::kSliceBlocks : G::kPartBlocks;
  Block sums[kDown][kAcross];
  // Of feature channels 16 s + 8 n + 2t + p, [s][2 n + p]; the same for all g.
  float key_sums[G::kPartBlocks][4];

  __device__ void clear() {
#pragma unroll
    for (int d = 0; d < kDown; ++d) cuda::clear(sums[d]);
#pragma unroll
    for (int i = 0; i < G::kPartBlocks * 4; ++i) key_sums[i / 4][i % 4] = 0.f;
  }

  /// Adds what the segment begins with.
  __device__ void load(const SweepArgs& args, const Place<G>& place, const Role& role) {
    const StartEntries entries(args, place);
    for (int e = 0; e < entries.count; ++e) {
      const int64_t entry = entries.first + e;
      each(
          args, args.start, entry, role,
          [&](float& sum, int64_t index) { sum += args.start.sums[index]; },
          [&](float& sum, int64_t index) { sum += args.start.key_sums[index]; });
    }
  }
  /// Writes entry `entry` of args.made.
  __device__ void store(const SweepArgs& args, int64_t entry, const Role& role) {
    each(
        args, args.made, entry, role,
        [&](float& sum, int64_t index) { args.made.sums[index] = sum; },
        [&](float& sum, int64_t index) {
          if (lane_id() / 4 == 0 && role.slice == 0) args.made.key_sums[index] = sum;
        });
  }

 private:
  /// sums_body(sum, index) and key_sums_body(sum, index) for every number that the entry has.
  template <typename SumsBody, typename KeySumsBody>
  __device__ __forceinline__ void each(const SweepArgs& args, const States& states, int64_t entry,
                                       const Role& role, const SumsBody& sums_body,
                                       const KeySumsBody& key_sums_body) {
    const int64_t first = (entry * states.maps + args.first_map + role.map) * args.head_dim;
#pragma unroll
    for (int d = 0; d < kDown; ++d) {
#pragma unroll
      for (int a = 0; a < kAcross; ++a) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const int row = d * kBlockDim + row_of(i % 4),
                    column = a * kBlockDim + column_of(i / 4, i);
          const int channel = role.part * G::kPartDim + (kKeysAreRows ? row : column);
          const int value = role.slice * G::kSliceDim + (kKeysAreRows ? column : row);
          if (channel < head_dim<G>(args) && value < value_dim<G>(args)) {
            sums_body(sums[d][a][i / 4][i % 4], (first + channel) * states.row_length + value);
          }
        }
      }
    }
#pragma unroll
    for (int s = 0; s < G::kPartBlocks; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int channel = role.part * G::kPartDim + s * kBlockDim + column_of(i / 2, i);
        if (channel < head_dim<G>(args)) key_sums_body(key_sums[s][i], first + channel);
      }
    }
  }
};

/// A fragment of ones in the columns of live tokens, all rows the same.
__device__ __forceinline__ Fragment live_rows(uint32_t live) {
  if ((live & 0xffffu) == 0xffffu) return equal_rows(0x3f803f80u, 0x3f803f80u);
  const uint32_t mine = live >> lane_id() % 4 * 2;
  const auto pair = [](uint32_t bits) {
    return (bits & 1 ? 0x3f80u : 0u) | (bits & 2 ? 0x3f800000u : 0u);
  };
  return equal_rows(pair(mine), pair(mine >> 8));
}

/// key_sums += the sum of feature rows, weighted by `weights`, whose rows are all the same. The
/// features come turned.
template <typename G>
__device__ __forceinline__ void add_key_sums(float (&key_sums)[G::kPartBlocks][4],
                                             const Fragment& weights,
                                             const Fragment (&turned_features)[G::kPartBlocks]) {
#pragma unroll
  for (int s = 0; s < G::kPartBlocks; ++s) {
    Block c[1];
    clear(c);
    add_product(c[0], weights, turned_features[s]);
#pragma unroll
    for (int i = 0; i < 4; ++i) key_sums[s][i] += c[0][i / 2][i % 2];
  }
}

}  // namespace fmmformer::cuda::roles
