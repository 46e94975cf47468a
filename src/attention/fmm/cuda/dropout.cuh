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

/// Which of four neighbouring keys a query keeps, as bits.
__device__ inline uint32_t kept_keys(const SweepArgs& args, uint64_t seed, int pair, int query,
                                     int key) {
  const PhiloxBlock block =
      philox_block({{static_cast<uint32_t>(key / 4), static_cast<uint32_t>(query),
                     static_cast<uint32_t>(pair), 0}},
                   static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  uint32_t bits = 0;
#pragma unroll
  for (int w = 0; w < 4; ++w) bits |= (block.word[w] >= args.drop_below ? 1u : 0u) << w;
  return bits;
}
/// Which of a [16 queries, 16 keys] tile's elements are kept: bit 4 n + i is of element i of block
/// n. Sixteen rows of two blocks of four keys are one block a lane.
__device__ inline uint32_t kept_by_query(const SweepArgs& args, uint64_t seed, int pair, int query,
                                         int key) {
  const int lane = lane_id(), g = lane / 4, t = lane % 4;
  uint32_t kept = 0;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const uint32_t mine = kept_keys(args, seed, pair, query + lane / 2, key + n * 8 + lane % 2 * 4);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t bits = __shfl_sync(~0u, mine, (g + 8 * r) * 2 + t / 2) >> (2 * t % 4);
      kept |= (bits & 3) << (4 * n + 2 * r);
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
/// Both of a [16 keys, 16 queries] tile.
__device__ inline uint32_t kept_by_key(const SweepArgs& args, uint64_t seed, int pair, int key,
                                       int query) {
  const int lane = lane_id(), g = lane / 4, t = lane % 4;
  uint32_t kept = 0;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const uint32_t mine = kept_keys(args, seed, pair, query + n * 8 + lane % 8, key + lane / 8 * 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t bits = __shfl_sync(~0u, mine, (g / 4 + i / 2 * 2) * 8 + 2 * t + i % 2);
      kept |= (bits >> g % 4 & 1) << (4 * n + i);
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
