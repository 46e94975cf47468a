// SPDX-License-Identifier: Apache-2.0
#include "tasks/pathfinder/scene.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "tasks/pathfinder/heading.h"
#include "tasks/pathfinder/occupancy.h"

namespace fmmformer::tasks::pathfinder {
namespace {

constexpr int kPaddleTries = 3;
constexpr int kDistractorTries = 5;
constexpr double kLeastRoom = 1e-4 * 255;  // less in all directions together is a dead end

// A contour that is being drawn. Its last paddle is not in the occupancy yet: the next one, which
// follows close behind, could not be placed otherwise.
struct Growing {
  Contour paddles;
  Point pivot;  // around which the last paddle turned
  Heading heading = 0;
};

Growing begin_contour(Point tail, Heading heading) {
  const Point head = moved(tail, heading, kPaddleLength);
  return {.paddles = {{.at = tail, .reach = reach_ahead(heading)}},
          .pivot = moved(head, heading, -(kPaddleLength + kMargin)),
          .heading = heading};
}

bool extend(Growing& contour, Occupancy& occupancy, Dice& dice) {
  const Point pivot = moved(contour.pivot, contour.heading, kPaddleLength + 2 * kMargin);
  const auto& weights = turn_weights(contour.heading);
  std::array<double, 32> reached;  // running sums; there are fewer steps than that
  double sum = 0;
  for (size_t k = 0; k < weights.size(); ++k) {
    const Point end = pivot + steps()[k];
    if (weights[k] > 0 && is_inside(end)) sum += weights[k] * occupancy.room_around(end);
    reached[k] = sum;
  }
  if (sum < kLeastRoom) return false;
  for (int i = 0; i < kPaddleTries; ++i) {
    const double drawn = dice.uniform() * sum;  // less than the last of the running sums
    const auto step =
        std::upper_bound(reached.begin(), reached.begin() + std::ssize(weights), drawn) -
        reached.begin();
    const Heading heading = kFirstStep + static_cast<int>(step);
    const Paddle paddle{.at = pivot + steps()[step], .reach = reach_back(heading)};
    if (!occupancy.admits(paddle)) continue;
    occupancy.add(contour.paddles.back());
    contour.paddles.push_back(paddle);
    contour.pivot = pivot;
    contour.heading = heading;
    return true;
  }
  return false;
}

Heading any_heading(Dice& dice) { return dice.below(360); }

// A pixel where a contour can begin; none where no room is.
std::optional<Point> any_place(const Occupancy::Rows& blocked, Heading heading, Dice& dice) {
  const auto& footprint = seed_footprint(reach_ahead(heading));
  if (footprint.empty()) return std::nullopt;
  const auto places = free_places(blocked, footprint);
  const int number = count(places);
  if (number == 0) return std::nullopt;
  return nth(places, dice.below(number));
}

// Two first paddles around the centre; false when the first finds no place there.
bool begin_targets(std::array<Growing, 2>& targets, Dice& dice) {
  constexpr int kBorder = 2 * kSeedDistance;
  constexpr uint32_t kCentre = ((1u << (kWindow - 2 * kBorder)) - 1) << kBorder;
  Occupancy::Rows outside;
  outside.fill(~0u);
  for (int y = kBorder; y < kWindow - kBorder; ++y) outside[y] = ~kCentre;

  const Heading heading = any_heading(dice);
  const auto tail = any_place(outside, heading, dice);
  if (!tail) return false;
  targets[0] = begin_contour(*tail, heading);

  const Heading other_heading = any_heading(dice);
  const double angle = dice.below(360) * std::numbers::pi / 180;
  const Point other_tail{
      static_cast<int>(std::nearbyint(tail->y + kSeedDistance * std::sin(angle))),
      static_cast<int>(std::nearbyint(tail->x + kSeedDistance * std::cos(angle)))};
  targets[1] = begin_contour(other_tail, other_heading);
  return true;
}

bool grow_targets(std::array<Growing, 2>& targets, int length, Occupancy& occupancy, Dice& dice) {
  if (!begin_targets(targets, dice)) return false;
  for (int i = 1; i < length; ++i) {
    for (Growing& target : targets) {
      if (!extend(target, occupancy, dice)) return false;
    }
  }
  // Its last paddle alone: the first target's is missing in the published generator too, so that a
  // distractor may cross it.
  occupancy.add(targets[1].paddles.back());
  return true;
}

bool begin_distractor(Growing& contour, const Occupancy& occupancy, Dice& dice) {
  for (int i = 0; i < kPaddleTries; ++i) {
    const Heading heading = any_heading(dice);
    const auto tail = any_place(occupancy.blocked(), heading, dice);
    if (!tail) return false;
    contour = begin_contour(*tail, heading);
    if (is_inside(moved(*tail, heading, kPaddleLength)) && is_inside(contour.pivot)) return true;
  }
  return false;
}

// Changes the occupancy only when it succeeds.
bool grow_distractor(Growing& contour, int length, Occupancy& occupancy, Dice& dice) {
  if (!begin_distractor(contour, occupancy, dice)) return false;
  Occupancy with_it = occupancy;
  for (int i = 1; i < length; ++i) {
    if (!extend(contour, with_it, dice)) return false;
  }
  with_it.add(contour.paddles.back());
  occupancy = with_it;
  return true;
}

}  // namespace

Scene draw_scene(const SceneOptions& options, Dice& dice) {
  Scene scene{.label = dice.below(2)};
  Occupancy occupancy;
  std::array<Growing, 2> targets;
  while (!grow_targets(targets, options.contour_length, occupancy, dice)) occupancy = {};

  for (int i = 0; i < options.distractors; ++i) {
    Growing contour;
    for (int tries = 0; tries < kDistractorTries; ++tries) {
      if (!grow_distractor(contour, options.distractor_length, occupancy, dice)) continue;
      scene.distractors.push_back(std::move(contour.paddles));
      break;
    }
  }

  const int origin = dice.below(2);
  const int terminal = scene.label == 1 ? origin : 1 - origin;
  scene.origin_marker = targets[origin].paddles.front().at;
  scene.terminal_marker = targets[terminal].paddles.back().at;
  for (size_t i = 0; i < 2; ++i) scene.targets[i] = std::move(targets[i].paddles);
  return scene;
}

}  // namespace fmmformer::tasks::pathfinder
