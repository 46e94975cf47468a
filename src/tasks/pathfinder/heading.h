// SPDX-License-Identifier: Apache-2.0
// Which ways a contour can point and turn. There are finitely many: a first paddle points along a
// whole number of degrees, every other one along a step from a pixel to another. All that follows
// from them is in tables.
#pragma once

#include <vector>

#include "tasks/pathfinder/geometry.h"

namespace fmmformer::tasks::pathfinder {

/// Which heading: 0 .. 359 point along heading - 180 degrees, kFirstStep + k along steps()[k].
using Heading = int;
constexpr Heading kFirstStep = 360;

/// Where the far end of the next paddle can be, seen from the point around which a contour turns:
/// the pixels on a circle of radius length + margin, by row and column.
const std::vector<Point>& steps();

/// How likely each step is after a heading, before occupied pixels are ruled out: the square of the
/// turn's cosine, nothing from a right angle on.
const std::vector<double>& turn_weights(Heading heading);

/// The point `distance` pixels ahead, or behind when negative, rounded up in both coordinates.
Point moved(Point from, Heading heading, int distance);

/// A paddle's reach along a heading, and against it.
Point reach_ahead(Heading heading);
Point reach_back(Heading heading);

}  // namespace fmmformer::tasks::pathfinder
