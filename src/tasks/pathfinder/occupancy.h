// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tasks/dice.h"
#include "tasks/pathfinder/paddle.h"

namespace fmmformer::tasks::pathfinder {

/// How much of each pixel the guards of the paddles drawn so far cover: 0 .. 255.
class Occupancy {
 public:
  Occupancy();  // only the frame is covered

  /// Whether a paddle's guard nowhere lies on others so that both together exceed 1.8 pixels.
  bool admits(const Paddle& paddle) const;

  void add(const Paddle& paddle);

  /// How much of a pixel and its four neighbours is free where it is least: 0 .. 255.
  int room_around(Point point) const;

  using Rows = std::array<uint32_t, kWindow>;  // a bit a pixel, bit x of row y

  /// Pixels more than 0.3 covered.
  Rows blocked() const;

 private:
  uint8_t& cell(int y, int x) { return cells_[index_of({y, x})]; }
  uint8_t cell(int y, int x) const { return cells_[index_of({y, x})]; }

  std::array<uint8_t, kPixels> cells_ = {};
};

/// Pixels from which no offset leads to a blocked one. Leaving the picture is no obstacle.
Occupancy::Rows free_places(const Occupancy::Rows& blocked, const std::vector<Point>& offsets);

int count(const Occupancy::Rows& places);

/// The n-th set pixel by row and column; n < count(places).
Point nth(const Occupancy::Rows& places, int n);

}  // namespace fmmformer::tasks::pathfinder
