// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "tasks/dice.h"
#include "tasks/generate.h"
#include "tasks/pathfinder/paint.h"
#include "tasks/pathfinder/scene.h"

namespace fmmformer::tasks {

/// The defaults are Long Range Arena's hard variant, curv_contour_length_14.
using PathfinderOptions = pathfinder::SceneOptions;

struct PathfinderExample {
  pathfinder::Pixels pixels;  // 32 x 32 grey values by row, 0 = background
  int label = 0;              // 1: the two markers are the ends of one contour

  bool operator==(const PathfinderExample&) const = default;
};

/// Example `index` of the data set that `seed` names: draw_scene, then paint.
/// Throws std::invalid_argument when the options leave no room for a picture.
PathfinderExample make_pathfinder_example(const PathfinderOptions& options, uint64_t seed,
                                          int64_t index);
PathfinderExample make_pathfinder_example(const PathfinderOptions& options, Dice& dice);

/// Examples in order, made by several threads; the same for any number of them.
void generate_pathfinder(const GenerateRequest& request, const PathfinderOptions& options,
                         const std::function<void(const PathfinderExample&)>& sink);

}  // namespace fmmformer::tasks
