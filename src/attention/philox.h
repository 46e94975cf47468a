// SPDX-License-Identifier: Apache-2.0
// Philox4x32-7 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011:
// the fewest rounds that pass their whole battery of tests; ten, the usual choice, cost 40 % more),
// and how the near field's dropout uses it: probability (b, h, i, j) takes word j % 4 of the block
// of counter (j / 4, i, b * H + h, 0) under the key `seed`, and is dropped when that word is below
// p * 2^32. CPU and CUDA draw the same masks.
#pragma once

#include <cstdint>

#include "attention/host_device.h"

namespace fmmformer {

inline constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53, kPhiloxMultiplier1 = 0xCD9E8D57;
inline constexpr uint32_t kPhiloxKeyStep0 = 0x9E3779B9, kPhiloxKeyStep1 = 0xBB67AE85;
inline constexpr int kPhiloxRounds = 7;

struct PhiloxBlock {
  uint32_t word[4];
};

FMMFORMER_HOST_DEVICE inline PhiloxBlock philox_round(const PhiloxBlock& counter, uint32_t key0,
                                                      uint32_t key1) {
  const uint64_t low = static_cast<uint64_t>(kPhiloxMultiplier0) * counter.word[0];
  const uint64_t high = static_cast<uint64_t>(kPhiloxMultiplier1) * counter.word[2];
  return {{static_cast<uint32_t>(high >> 32) ^ counter.word[1] ^ key0, static_cast<uint32_t>(high),
           static_cast<uint32_t>(low >> 32) ^ counter.word[3] ^ key1, static_cast<uint32_t>(low)}};
}

FMMFORMER_HOST_DEVICE inline PhiloxBlock philox_block(PhiloxBlock counter, uint32_t key0,
                                                      uint32_t key1) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    counter = philox_round(counter, key0, key1);
    key0 += kPhiloxKeyStep0;
    key1 += kPhiloxKeyStep1;
  }
  return counter;
}

/// A word below this means: dropped.
FMMFORMER_HOST_DEVICE inline uint32_t dropout_threshold(double probability) {
  return static_cast<uint32_t>(probability * 4294967296.0);
}

}  // namespace fmmformer
