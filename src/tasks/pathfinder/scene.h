// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <vector>

#include "tasks/dice.h"
#include "tasks/pathfinder/paddle.h"

namespace fmmformer::tasks::pathfinder {

struct SceneOptions {
  int contour_length = 14;    // paddles of each of the two contours that the question is about
  int distractor_length = 4;  // paddles of every other contour
  int distractors = 5;        // wanted; where there is no room left, there are fewer
};

using Contour = std::vector<Paddle>;

/// What a picture shows, before it is painted.
struct Scene {
  std::array<Contour, 2> targets;
  std::vector<Contour> distractors;
  Point origin_marker;    // where one target begins
  Point terminal_marker;  // where the same target (label 1) or the other one (label 0) ends
  int label = 0;
};

/// Draws a scene as the Pathfinder generator of Linsley et al. does. Both targets grow in turns, a
/// paddle each, from two points near the centre that are kSeedDistance apart; a paddle that finds
/// no place starts everything anew. Each paddle leads on from the last with a random turn
/// (heading.h) and keeps its distance to all others (occupancy.h). Distractors grow the same way
/// wherever there is room; each has five tries.
Scene draw_scene(const SceneOptions& options, Dice& dice);

}  // namespace fmmformer::tasks::pathfinder
