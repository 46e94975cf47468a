// SPDX-License-Identifier: Apache-2.0
#include "tasks/generator_statistics.h"

#include <array>
#include <numbers>
#include <numeric>

namespace fmmformer::tasks::testing {
namespace {

using pathfinder::Contour;
using pathfinder::kWindow;
using pathfinder::Pixels;
using pathfinder::Point;

bool is_operator(uint8_t token) { return token >= kListOpsMin && token <= kListOpsSumModulo; }
bool is_digit(uint8_t token) { return token >= kListOpsDigit0 && token < kListOpsMin; }

double length(const ListOpsExample& example) { return static_cast<double>(example.tokens.size()); }

double count(const ListOpsExample& example, bool (*what)(uint8_t)) {
  return static_cast<double>(std::ranges::count_if(example.tokens, what));
}

double operators(const ListOpsExample& example) { return count(example, is_operator); }

// Operators around a digit, the mean over all digits. (The deepest digit says nothing: at this
// length nearly every tree reaches the limit.)
double mean_depth(const ListOpsExample& example) {
  int open = 0;
  double sum = 0;
  for (const uint8_t token : example.tokens) {
    open += is_operator(token) ? 1 : token == kListOpsClose ? -1 : 0;
    if (is_digit(token)) sum += open;
  }
  return sum / count(example, is_digit);
}

// Every node but the root is an argument.
double arguments_per_operator(const ListOpsExample& example) {
  return (operators(example) + count(example, is_digit) - 1) / operators(example);
}

template <ListOpsToken kOperator>
double share(const ListOpsExample& example) {
  return static_cast<double>(std::ranges::count(example.tokens, kOperator)) / operators(example);
}

double mean_digit(const ListOpsExample& example) {
  double sum = 0;
  for (const uint8_t token : example.tokens) {
    if (is_digit(token)) sum += token - kListOpsDigit0;
  }
  return sum / count(example, is_digit);
}

double root_and_answer(const ListOpsExample& example) {
  return 10 * (example.tokens.front() - kListOpsMin) + example.label;
}

constexpr int kInk = 64;  // a pixel that shows a line, not the filter's ripples beside it

double label(const PathfinderPicture& picture) { return picture.scene.label; }

double pixels_between(const PathfinderPicture& picture, int low, int high) {
  return static_cast<double>(std::ranges::count_if(
      picture.pixels, [=](uint8_t grey) { return grey >= low && grey < high; }));
}

double ink(const PathfinderPicture& picture) { return pixels_between(picture, kInk, 256); }
double ripples(const PathfinderPicture& picture) { return pixels_between(picture, 1, 16); }
double dim(const PathfinderPicture& picture) { return pixels_between(picture, kInk, 128); }
double middle(const PathfinderPicture& picture) { return pixels_between(picture, 128, 192); }
double bright(const PathfinderPicture& picture) { return pixels_between(picture, 192, 256); }

double mean_grey(const PathfinderPicture& picture) {
  return std::accumulate(picture.pixels.begin(), picture.pixels.end(), 0.0) /
         static_cast<double>(picture.pixels.size());
}

double distance(Point a, Point b) { return std::hypot(a.y - b.y, a.x - b.x); }

double marker_distance(const PathfinderPicture& picture) {
  return distance(picture.scene.origin_marker, picture.scene.terminal_marker);
}

double distractors(const PathfinderPicture& picture) {
  return static_cast<double>(picture.scene.distractors.size());
}

double end_to_end(const PathfinderPicture& picture) {
  const Contour& contour = picture.scene.targets[0];
  return distance(contour.front().at, contour.back().at);
}

// The mean turn from a paddle to the next but one, in degrees.
double turning(const PathfinderPicture& picture) {
  const Contour& contour = picture.scene.targets[1];
  const auto direction = [&](size_t i) {
    return std::atan2(contour[i + 1].at.y - contour[i].at.y, contour[i + 1].at.x - contour[i].at.x);
  };
  double sum = 0;
  for (size_t i = 1; i + 1 < contour.size(); ++i) {
    const double turn = std::abs(direction(i) - direction(i - 1));
    sum += std::min(turn, 2 * std::numbers::pi - turn);
  }
  return sum / static_cast<double>(contour.size() - 2) * 180 / std::numbers::pi;
}

double gap_between_targets(const PathfinderPicture& picture) {
  double least = kWindow;
  for (const auto& one : picture.scene.targets[0]) {
    for (const auto& other : picture.scene.targets[1]) {
      least = std::min(least, distance(one.at, other.at));
    }
  }
  return least;
}

template <int Point::*kCoordinate>
double centre(const PathfinderPicture& picture) {
  double sum = 0;
  for (const auto& paddle : picture.scene.targets[0]) sum += paddle.at.*kCoordinate;
  return sum / static_cast<double>(picture.scene.targets[0].size());
}

// Empties the connected region around a pixel; diagonal neighbours are connected.
void erase_region(std::array<bool, pathfinder::kPixels>& is_ink, Point point) {
  if (!is_inside(point)) return;
  bool& here = is_ink[index_of(point)];
  if (!here) return;
  here = false;
  for (int y = -1; y <= 1; ++y) {
    for (int x = -1; x <= 1; ++x) erase_region(is_ink, point + Point{y, x});
  }
}

double regions(const PathfinderPicture& picture) {
  std::array<bool, pathfinder::kPixels> is_ink;
  std::ranges::transform(picture.pixels, is_ink.begin(), [](uint8_t grey) { return grey >= kInk; });
  int count = 0;
  for (int i = 0; i < kWindow * kWindow; ++i) {
    if (!is_ink[static_cast<size_t>(i)]) continue;
    ++count;
    erase_region(is_ink, {i / kWindow, i % kWindow});
  }
  return count;
}

// A value with the label, for histograms whose second half belongs to label 1.
double joint(const PathfinderPicture& picture, Bins bins, double value) {
  return picture.scene.label * bins.count + static_cast<double>(bins.bin_of(value));
}

constexpr Bins kInkBins{85, 5, 19}, kGreyBins{14, 0.75, 18}, kDistanceBins{0, 2, 14};

double label_and_ink(const PathfinderPicture& picture) {
  return joint(picture, kInkBins, ink(picture));
}
double label_and_grey(const PathfinderPicture& picture) {
  return joint(picture, kGreyBins, mean_grey(picture));
}
double label_and_marker_distance(const PathfinderPicture& picture) {
  return joint(picture, kDistanceBins, marker_distance(picture));
}

Bins twice(Bins bins) { return {0, 1, 2 * bins.count}; }

}  // namespace

const std::vector<Statistic<ListOpsExample>>& listops_statistics() {
  static const std::vector<Statistic<ListOpsExample>> kStatistics = {
      {"tokens", {500, 100, 15}, length},
      {"depth of a digit", {5.5, 0.1, 30}, mean_depth},
      {"operators", {60, 20, 13}, operators},
      {"arguments an operator", {5.2, 0.1, 17}, arguments_per_operator},
      {"share of MIN", {0.1, 0.02, 15}, share<kListOpsMin>},
      {"share of MAX", {0.1, 0.02, 15}, share<kListOpsMax>},
      {"share of MED", {0.1, 0.02, 15}, share<kListOpsMedian>},
      {"share of SM", {0.1, 0.02, 15}, share<kListOpsSumModulo>},
      {"mean digit", {4, 0.05, 20}, mean_digit},
      {"outermost operator and answer", {0, 1, 40}, root_and_answer},
  };
  return kStatistics;
}

const std::vector<Statistic<PathfinderPicture>>& pathfinder_statistics() {
  static const std::vector<Statistic<PathfinderPicture>> kStatistics = {
      {"label", {0, 1, 2}, label},
      {"pixels with ink", kInkBins, ink},
      {"mean grey", kGreyBins, mean_grey},
      {"grey 1..15", {110, 10, 16}, ripples},
      {"grey 64..127", {14, 4, 16}, dim},
      {"grey 128..191", {45, 3, 16}, middle},
      {"grey 192..255", {9, 2, 16}, bright},
      {"connected regions", {3, 1, 23}, regions},
      {"distractors", {0, 1, 6}, distractors},
      {"distance between markers", kDistanceBins, marker_distance},
      {"contour's end to end", {0, 2, 11}, end_to_end},
      {"contour's mean turn", {15, 2.5, 14}, turning},
      {"contour's mean row", {4, 1, 20}, centre<&Point::y>},
      {"contour's mean column", {4, 1, 20}, centre<&Point::x>},
      {"gap between the contours", {0, 0.5, 14}, gap_between_targets},
      {"label and ink", twice(kInkBins), label_and_ink},
      {"label and grey", twice(kGreyBins), label_and_grey},
      {"label and distance", twice(kDistanceBins), label_and_marker_distance},
  };
  return kStatistics;
}

double surprise(const Histogram& a, const Histogram& b) {
  const double all_a = std::accumulate(a.begin(), a.end(), 0.0);
  const double all_b = std::accumulate(b.begin(), b.end(), 0.0);
  double in_a = 0, in_b = 0, sum = 0;
  int bins = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    in_a += a[i];
    in_b += b[i];
    if (in_a + in_b < 10 && i + 1 < a.size()) continue;
    if (in_a + in_b > 0) {
      const double difference = in_a * std::sqrt(all_b / all_a) - in_b * std::sqrt(all_a / all_b);
      sum += difference * difference / (in_a + in_b);
      ++bins;
    }
    in_a = in_b = 0;
  }
  const double freedom = std::max(bins - 1, 1);
  return (sum - freedom) / std::sqrt(2 * freedom);
}

double best_guess(const Histogram& joint) {
  const size_t half = joint.size() / 2;
  double right = 0;
  for (size_t i = 0; i < half; ++i) right += std::max(joint[i], joint[half + i]);
  return right / std::accumulate(joint.begin(), joint.end(), 0.0);
}

}  // namespace fmmformer::tasks::testing
