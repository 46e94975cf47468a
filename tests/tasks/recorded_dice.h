// SPDX-License-Identifier: Apache-2.0
// The random numbers of numpy and of Python, to repeat what the published generators did. Both come
// from the Mersenne Twister; they differ in its seeding and in how they draw a number below a
// bound.
#pragma once

#include <bit>
#include <cstdint>
#include <random>

#include "tasks/dice.h"

namespace fmmformer::tasks::testing {

class TwisterDice : public Dice {
 public:
  explicit TwisterDice(std::mt19937 twister) : twister_(twister) {}

  double uniform() override {
    const uint32_t high = twister_() >> 5, low = twister_() >> 6;
    return (high * 0x1.0p26 + low) * 0x1.0p-53;
  }

 protected:
  std::mt19937 twister_;
};

/// numpy.random after seed(seed).
class NumpyDice final : public TwisterDice {
 public:
  explicit NumpyDice(uint32_t seed) : TwisterDice(std::mt19937(seed)) {}

  int below(int bound) override {
    if (bound == 1) return 0;
    const auto last = static_cast<uint32_t>(bound - 1);
    const uint32_t mask = std::bit_ceil(last + 1) - 1;
    uint32_t value = twister_() & mask;
    while (value > last) value = twister_() & mask;
    return static_cast<int>(value);
  }
};

/// Python's module random after seed(seed).
class PythonDice final : public TwisterDice {
 public:
  explicit PythonDice(uint32_t seed) : TwisterDice(seeded(seed)) {}

  int below(int bound) override {
    const int bits = std::bit_width(static_cast<uint32_t>(bound));
    uint32_t value = twister_() >> (32 - bits);
    while (value >= static_cast<uint32_t>(bound)) value = twister_() >> (32 - bits);
    return static_cast<int>(value);
  }

 private:
  // "Initialisation by array" of the Twister's authors, with one number in the array.
  struct Initialisation {
    using result_type = uint32_t;
    uint32_t key;

    void generate(uint_least32_t* state, uint_least32_t* end) const {
      const auto size = static_cast<uint32_t>(end - state);
      state[0] = 19650218;
      for (uint32_t i = 1; i < size; ++i) state[i] = 1812433253u * folded(state[i - 1]) + i;
      uint32_t i = 1;
      const auto advance = [&] {
        if (++i < size) return;
        state[0] = state[size - 1];
        i = 1;
      };
      for (uint32_t k = 0; k < size; ++k, advance()) {
        state[i] = (state[i] ^ (folded(state[i - 1]) * 1664525u)) + key;
      }
      for (uint32_t k = 1; k < size; ++k, advance()) {
        state[i] = (state[i] ^ (folded(state[i - 1]) * 1566083941u)) - i;
      }
      state[0] = 0x80000000u;
    }

    static uint32_t folded(uint32_t x) { return x ^ (x >> 30); }
  };

  static std::mt19937 seeded(uint32_t seed) {
    Initialisation initialisation{seed};
    return std::mt19937(initialisation);
  }
};

}  // namespace fmmformer::tasks::testing
