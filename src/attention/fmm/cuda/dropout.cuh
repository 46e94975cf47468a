// SPDX-License-Identifier: Apache-2.0
// Dropout of the near field's probabilities: the bits of attention/philox.h, for the elements that
// a lane of a product holds.
#pragma once

#include "attention/fmm/cuda/mma.cuh"
#include "attention/fmm/cuda/sweep.h"
#include "attention/philox.h"

namespace fmmformer::cuda {

/// The seed, read once: it lies in memory so that a replayed graph finds a fresh one.
__device__ inline uint64_t dropout_seed(const SweepArgs& args) {
  return args.drop_below > 0 ? static_cast<uint64_t>(*args.dropout_seed) : 0;
}

/// The counter of what lane 4g + t holds of a [16 queries, 16 keys] tile, both from multiples of
/// sixteen on: queries g and g + 8; keys 2t and 2t + 1 in the lower and the upper half of a word,
/// and eight further in the next word.
__device__ __forceinline__ PhiloxBlock lane_counter(int query, int key, int pair, uint32_t lane) {
  return {{static_cast<uint32_t>(key >> 2) + lane % 4, static_cast<uint32_t>(query >> 1) + lane / 4,
           static_cast<uint32_t>(pair), 0}};
}
/// The blocks of several counters, round by round, so that there is one key at a time.
template <int kCount>
__device__ __forceinline__ void philox_blocks(PhiloxBlock (&draws)[kCount], uint64_t seed) {
  uint32_t keys[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
#pragma unroll
  for (int round = 0; round < kPhiloxRounds; ++round) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) draws[i] = philox_round(draws[i], keys[0], keys[1]);
    keys[0] += kPhiloxKeyStep0, keys[1] += kPhiloxKeyStep1;
    // Not computed anew for every draw.
    asm volatile("" : "+r"(keys[0]), "+r"(keys[1]));
  }
}
__device__ inline PhiloxBlock philox_block(PhiloxBlock counter, uint64_t seed) {
  return philox_block(counter, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

/// Which of a [16 queries, 16 keys] tile's elements are kept: bit 4 n + i is of element i of block
/// n. Queries from a multiple of sixteen on, keys from one of eight.
__device__ inline uint32_t kept_by_query(const SweepArgs& args, uint64_t seed, int pair, int query,
                                         int key) {
  PhiloxBlock block;
  uint32_t kept = 0;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int keys = key + n * 8;
    const bool upper = keys & 8;
    if (n == 0 || !upper)  // else the one before serves these, too
      block = philox_block(lane_counter(query, keys & ~15, pair, lane_id()), seed);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = upper ? block.word[i / 2 * 2 + 1] : block.word[i / 2 * 2];
      kept |= (near_dropout_bits(word, i) >= args.drop_below ? 1u : 0u) << (4 * n + i);
    }
  }
  return kept;
}
/// The same as factors: 0 or 1 / (1 - p).
__device__ inline void dropout_by_query(float (&factor)[2][4], const SweepArgs& args, uint64_t seed,
                                        int pair, int query, int key) {
  const uint32_t kept = kept_by_query(args, seed, pair, query, key);
#pragma unroll
  for (int i = 0; i < 8; ++i) factor[i / 4][i % 4] = kept >> i & 1 ? args.keep_factor : 0.f;
}
/// Both of a [16 keys, 16 queries] tile: keys from a multiple of sixteen on, queries from one of
/// eight. Lane 8k + q draws for two of the keys, of either half, and one of eight queries.
__device__ inline uint32_t kept_by_key(const SweepArgs& args, uint64_t seed, int pair, int key,
                                       int query) {
  const int lane = lane_id(), g = lane / 4, t = lane % 4;
  PhiloxBlock block;
  uint32_t kept = 0;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int queries = query + n * 8;
    const bool upper = queries & 8;
    if (n == 0 || !upper)
      block = philox_block(lane_counter(queries & ~15, key, pair, lane % 8 * 4 + lane / 8), seed);
    uint32_t mine = 0;  // bit 2 * (key / 8) + key % 2
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = upper ? block.word[2 + i / 2] : block.word[i / 2];
      mine |= (near_dropout_bits(word, i) >= args.drop_below ? 1u : 0u) << i;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t bits = __shfl_sync(~0u, mine, g / 2 * 8 + 2 * t + i) >> g % 2;
      kept |= (bits & 1) << (4 * n + i) | (bits >> 2 & 1) << (4 * n + 2 + i);
    }
  }
  return kept;
}
__device__ inline void dropout_by_key(float (&factor)[2][4], const SweepArgs& args, uint64_t seed,
                                      int pair, int key, int query) {
  const uint32_t kept = kept_by_key(args, seed, pair, key, query);
#pragma unroll
  for (int i = 0; i < 8; ++i) factor[i / 4][i % 4] = kept >> i & 1 ? args.keep_factor : 0.f;
}

}  // namespace fmmformer::cuda
