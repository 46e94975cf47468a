// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tasks/pathfinder/geometry.h"

namespace fmmformer::tasks::pathfinder {

/// One dash of a contour: a line from `at`, in pixels, to `at` + `reach`, where `reach` is in half
/// pixels and at most kMaxReach either way.
struct Paddle {
  Point at;
  Point reach;

  bool operator==(const Paddle&) const = default;
};

constexpr int kMaxReach = kPaddleLength * kFineScale;

/// What a paddle puts into the picture and keeps free around itself, centred on its `at`. There
/// are only as many as there are reaches: all are drawn once.
struct Stamp {
  static constexpr int kRadius = kPaddleLength + 1 + kMargin;
  static constexpr int kSide = 2 * kRadius + 1;
  using Square = std::array<std::array<uint8_t, kSide>, kSide>;

  Square ink = {};    // the line, 255 = full
  Square guard = {};  // the line made wider by the margin, 255 = nothing else may be there
};

const Stamp& stamp_of(const Paddle& paddle);

/// Offsets that decide whether a contour can begin at a pixel with a paddle of this reach: none may
/// lead to an occupied pixel. They should be the stamp's full guard. The published generator moves
/// it down and right by a pixel and cuts it off there; and where it then leads from some pixel of
/// the picture only outside, its search gives up, for which this is empty. That leaves 30 of 360
/// degrees, up and left. (The second target begins without a search, in any direction.)
const std::vector<Point>& seed_footprint(Point reach);

}  // namespace fmmformer::tasks::pathfinder
