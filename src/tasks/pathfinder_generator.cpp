// SPDX-License-Identifier: Apache-2.0
#include "tasks/pathfinder_generator.h"

#include <stdexcept>
#include <string>

namespace fmmformer::tasks {
namespace {

// Longer contours fit so rarely that drawing anew until they do takes forever.
constexpr int kMaxContourLength = 18;

void check(const PathfinderOptions& options) {
  if (options.contour_length < 2 || options.contour_length > kMaxContourLength ||
      options.distractor_length < 1 || options.distractors < 0) {
    throw std::invalid_argument("pathfinder: contour_length is " +
                                std::to_string(options.contour_length) + ", distractor_length " +
                                std::to_string(options.distractor_length) + ", distractors " +
                                std::to_string(options.distractors) + "; allowed are 2.." +
                                std::to_string(kMaxContourLength) + ", 1 or more, 0 or more");
  }
}

}  // namespace

PathfinderExample make_pathfinder_example(const PathfinderOptions& options, Dice& dice) {
  check(options);
  const pathfinder::Scene scene = pathfinder::draw_scene(options, dice);
  return {.pixels = pathfinder::paint(scene), .label = scene.label};
}

PathfinderExample make_pathfinder_example(const PathfinderOptions& options, uint64_t seed,
                                          int64_t index) {
  SeededDice dice(derive_seed(seed, "pathfinder", index));
  return make_pathfinder_example(options, dice);
}

void generate_pathfinder(const GenerateRequest& request, const PathfinderOptions& options,
                         const std::function<void(const PathfinderExample&)>& sink) {
  generate_in_order(
      request, [&](int64_t i) { return make_pathfinder_example(options, request.seed, i); }, sink);
}

}  // namespace fmmformer::tasks
