// SPDX-License-Identifier: Apache-2.0
// Philox4x32-7 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011:
// the fewest rounds that pass their whole battery of tests; ten, the usual choice, cost 40 % more),
// and how the near field's dropout uses it. CPU and CUDA draw the same masks.
//
// A probability (b, h, i, j) has fifteen bits of its own and is dropped when they are below
// p * 2^15, rounded; the others grow by 1 / (1 - p) of that p. One block serves two queries, eight
// apart, and four keys of sixteen: what one lane holds of the 16 x 16 scores that a warp makes on
// tensor cores, so that nothing is exchanged there (docs/adr/0029-dropout-by-lanes.md).
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

/// The upper half of a product.
FMMFORMER_HOST_DEVICE inline uint32_t upper_product(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
  return __umulhi(a, b);  // of a product in 64 bits nvcc adds zero to the upper half
#else
  return static_cast<uint32_t>(static_cast<uint64_t>(a) * b >> 32);
#endif
}
FMMFORMER_HOST_DEVICE inline PhiloxBlock philox_round(const PhiloxBlock& counter, uint32_t key0,
                                                      uint32_t key1) {
  const uint32_t x = counter.word[0], y = counter.word[2];
  return {{upper_product(kPhiloxMultiplier1, y) ^ counter.word[1] ^ key0, kPhiloxMultiplier1 * y,
           upper_product(kPhiloxMultiplier0, x) ^ counter.word[3] ^ key1, kPhiloxMultiplier0 * x}};
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

/// The near field's dropout: fifteen bits below this mean: dropped. Something is always kept.
FMMFORMER_HOST_DEVICE inline uint32_t near_dropout_threshold(double probability) {
  const auto rounded = static_cast<uint32_t>(probability * 32768.0 + 0.5);
  return rounded < 32767u ? rounded : 32767u;
}
/// What the kept are multiplied with.
FMMFORMER_HOST_DEVICE inline double near_dropout_factor(double probability) {
  return 32768.0 / (32768.0 - near_dropout_threshold(probability));
}
/// The counter of the block that serves query i and key j of the (batch entry, head) `pair`; which
/// of its words; and of that, the fifteen bits.
FMMFORMER_HOST_DEVICE inline PhiloxBlock near_dropout_counter(uint32_t i, uint32_t j,
                                                              uint32_t pair) {
  return {{j / 16 * 4 + j % 8 / 2, i / 16 * 8 + i % 8, pair, 0}};
}
FMMFORMER_HOST_DEVICE inline uint32_t near_dropout_word(uint32_t i, uint32_t j) {
  return i / 8 % 2 * 2 + j / 8 % 2;
}
FMMFORMER_HOST_DEVICE inline uint32_t near_dropout_bits(uint32_t word, uint32_t j) {
  return word >> j % 2 * 16 & 0x7fffu;
}

}  // namespace fmmformer
