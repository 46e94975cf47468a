// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fmmformer/core/random.h"

namespace fmmformer::tasks {

/// Where a generator's random decisions come from. Data sets are made with SeededDice. Tests throw
/// those of the published Python generators, in the order in which these ask, and so hold ours
/// against what they made, byte for byte.
class Dice {
 public:
  virtual ~Dice() = default;
  virtual int below(int bound) = 0;  // uniform in 0 .. bound - 1; bound >= 1
  virtual double uniform() = 0;      // in [0, 1)
};

class SeededDice final : public Dice {
 public:
  explicit SeededDice(uint64_t seed) : random_(seed) {}

  int below(int bound) override {
    return static_cast<int>(random_.below(static_cast<uint64_t>(bound)));
  }
  double uniform() override { return random_.uniform(); }

 private:
  Random random_;
};

}  // namespace fmmformer::tasks
