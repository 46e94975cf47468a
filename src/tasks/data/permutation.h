// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <utility>

#include "fmmformer/core/random.h"

namespace fmmformer::tasks {

/// A permutation of 0 .. count - 1 that looks random and is a function of the key alone: an epoch's
/// order needs no table, no time beforehand and no state.
class Permutation {
 public:
  constexpr Permutation(uint64_t count, uint64_t key)
      : count_(count),
        key_(key),
        low_bits_((bits_for(count) + 1) / 2),
        high_bits_(bits_for(count) / 2) {}

  constexpr uint64_t operator()(uint64_t index) const {
    if (count_ < 2) return index;
    // The network permutes the next power of two. Where it leads outside, it goes on from there:
    // the walk stays on one cycle, which comes back inside, so this is a bijection too. Less than
    // half lies outside, so it takes under two rounds on average.
    do index = network(index);
    while (index >= count_);
    return index;
  }

 private:
  static constexpr int kRounds = 8;  // even: the halves end as wide as they began

  /// A Feistel network: each round adds to one half of the bits what the key makes of the other.
  constexpr uint64_t network(uint64_t x) const {
    int low_bits = low_bits_, high_bits = high_bits_;
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t low = x & mask(low_bits);
      const uint64_t high = ((x >> low_bits) ^ derive_seed(key_, round, low)) & mask(high_bits);
      x = low << high_bits | high;
      std::swap(low_bits, high_bits);
    }
    return x;
  }

  /// Of the numbers below count.
  static constexpr int bits_for(uint64_t count) {
    return count < 2 ? 0 : static_cast<int>(std::bit_width(count - 1));
  }
  static constexpr uint64_t mask(int bits) { return (uint64_t{1} << bits) - 1; }

  uint64_t count_, key_;
  int low_bits_, high_bits_;
};

}  // namespace fmmformer::tasks
