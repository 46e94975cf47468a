// SPDX-License-Identifier: Apache-2.0
#include "tasks/pathfinder/heading.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tasks/pathfinder/paddle.h"

namespace fmmformer::tasks::pathfinder {
namespace {

using std::numbers::pi;

// Also the rounding errors of the published generator are kept: the sine of its half turn is not
// quite 0, so that rounding up lifts a contour that runs exactly left by a pixel near the top.
struct Bearing {
  double sine, cosine;
  Point ahead, back;
  std::vector<double> weights;
};

std::vector<Point> points_on_circle() {
  constexpr int kRadius = kPaddleLength + kMargin;
  std::vector<Point> points;
  for (int i = 0; i < 2 * pi * kRadius; ++i) {  // one for every pixel of its circumference
    const double angle = static_cast<double>(i) / kRadius;
    points.push_back({static_cast<int>(std::floor(kRadius * std::sin(angle))),
                      static_cast<int>(std::floor(kRadius * std::cos(angle)))});
  }
  const auto by_row = [](Point a, Point b) { return a.y != b.y ? a.y < b.y : a.x < b.x; };
  std::ranges::sort(points, by_row);
  points.erase(std::unique(points.begin(), points.end()), points.end());
  return points;
}

double angle_of(Point offset) { return std::atan2(offset.y, offset.x); }

double turn_weight(double from, double to) {
  const double difference = std::abs(from - to);
  const double turn = std::min(difference, 2 * pi - difference);
  return turn < pi / 2 ? std::cos(turn) * std::cos(turn) : 0;
}

Point fine_reach(double angle) {
  // From a large number, as in a picture: rounding errors next to 0 vanish.
  constexpr int kOrigin = Stamp::kRadius * kFineScale;
  return {static_cast<int>(std::ceil(kOrigin + kMaxReach * std::sin(angle))) - kOrigin,
          static_cast<int>(std::ceil(kOrigin + kMaxReach * std::cos(angle))) - kOrigin};
}

Bearing bearing_of(double angle) {
  Bearing bearing{.sine = std::sin(angle),
                  .cosine = std::cos(angle),
                  .ahead = fine_reach(angle),
                  .back = fine_reach(angle < 0 ? angle + pi : angle - pi)};
  for (const Point step : steps()) bearing.weights.push_back(turn_weight(angle_of(step), angle));
  return bearing;
}

const Bearing& bearing(Heading heading) {
  static const std::vector<Bearing> kAll = [] {
    std::vector<Bearing> all;
    for (int degrees = -180; degrees < 180; ++degrees) {
      all.push_back(bearing_of(degrees * pi / 180));
    }
    for (const Point step : steps()) all.push_back(bearing_of(angle_of(step)));
    return all;
  }();
  return kAll[static_cast<size_t>(heading)];
}

}  // namespace

const std::vector<Point>& steps() {
  static const std::vector<Point> kSteps = points_on_circle();
  return kSteps;
}

const std::vector<double>& turn_weights(Heading heading) { return bearing(heading).weights; }

Point moved(Point from, Heading heading, int distance) {
  const Bearing& way = bearing(heading);
  return {static_cast<int>(std::ceil(from.y + distance * way.sine)),
          static_cast<int>(std::ceil(from.x + distance * way.cosine))};
}

Point reach_ahead(Heading heading) { return bearing(heading).ahead; }
Point reach_back(Heading heading) { return bearing(heading).back; }

}  // namespace fmmformer::tasks::pathfinder
