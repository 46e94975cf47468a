// SPDX-License-Identifier: Apache-2.0
#include "tasks/pathfinder/paddle.h"

#include <algorithm>
#include <cstdlib>

#include "tasks/pathfinder/lanczos.h"

namespace fmmformer::tasks::pathfinder {
namespace {

constexpr int kFineRadius = Stamp::kRadius * kFineScale;
constexpr int kFineSide = 2 * kFineRadius + 1;
constexpr int kReaches = 2 * kMaxReach + 1;

// Black and white, with the stamp's centre in the middle.
class FinePicture {
 public:
  FinePicture() : pixels_(size_t{kFineSide} * kFineSide) {}

  uint8_t& at(Point p) {
    return pixels_[static_cast<size_t>(p.y + kFineRadius) * kFineSide +
                   static_cast<size_t>(p.x + kFineRadius)];
  }

  // Bresenham's line from the centre; where two pixels are as near, the one farther out.
  void draw_line(Point end) {
    const int rows = std::abs(end.y), columns = std::abs(end.x);
    const int down = end.y < 0 ? -1 : 1, right = end.x < 0 ? -1 : 1;
    const int steps = std::max(rows, columns);
    const auto rounded = [steps](int i, int extent) {
      return steps == 0 ? 0 : (2 * i * extent + steps) / (2 * steps);
    };
    for (int i = 0; i <= steps; ++i)
      at({down * rounded(i, rows), right * rounded(i, columns)}) = 255;
  }

  // Every white pixel becomes a disc.
  FinePicture widened(int radius) {
    FinePicture wide;
    const int inner = kFineRadius - radius;
    for (int y = -inner; y <= inner; ++y) {
      for (int x = -inner; x <= inner; ++x) {
        if (at({y, x}) != 0) wide.draw_disc({y, x}, radius);
      }
    }
    return wide;
  }

  Stamp::Square shrunk() const {
    const auto small = shrink_square(pixels_, kFineSide, Stamp::kSide);
    Stamp::Square square;
    for (size_t i = 0; i < small.size(); ++i) square[i / Stamp::kSide][i % Stamp::kSide] = small[i];
    return square;
  }

 private:
  void draw_disc(Point centre, int radius) {
    for (int y = -radius; y <= radius; ++y) {
      for (int x = -radius; x <= radius; ++x) {
        if (y * y + x * x <= radius * radius) at(centre + Point{y, x}) = 255;
      }
    }
  }

  std::vector<uint8_t> pixels_;
};

struct Drawn {
  Stamp stamp;
  std::vector<Point> footprint;
};

// Whether an offset leads from each pixel of a picture to another of it, or itself. The corners
// decide: for each some offset must point the other way.
bool stays_inside(const std::vector<Point>& offsets) {
  const auto some = [&](int down, int right) {
    return std::ranges::any_of(
        offsets, [=](Point offset) { return offset.y * down >= 0 && offset.x * right >= 0; });
  };
  return some(1, 1) && some(1, -1) && some(-1, 1) && some(-1, -1);
}

std::vector<Point> footprint_of(const Stamp& stamp) {
  constexpr int kReachOfSeed = kPaddleLength + kMargin;
  std::vector<Point> footprint;
  for (int y = -kReachOfSeed; y <= kReachOfSeed; ++y) {
    for (int x = -kReachOfSeed; x <= kReachOfSeed; ++x) {
      const int row = Stamp::kRadius + y - 1, column = Stamp::kRadius + x - 1;
      if (stamp.guard[static_cast<size_t>(row)][static_cast<size_t>(column)] == 255) {
        footprint.push_back({y, x});
      }
    }
  }
  return stays_inside(footprint) ? footprint : std::vector<Point>{};
}

const Drawn& drawn(Point reach) {
  static const std::vector<Drawn> kAll = [] {
    std::vector<Drawn> all;
    for (int y = -kMaxReach; y <= kMaxReach; ++y) {
      for (int x = -kMaxReach; x <= kMaxReach; ++x) {
        FinePicture line;
        line.draw_line({y, x});
        Stamp stamp{.ink = line.shrunk(), .guard = line.widened(kMargin * kFineScale).shrunk()};
        all.push_back({.stamp = stamp, .footprint = footprint_of(stamp)});
      }
    }
    return all;
  }();
  return kAll[static_cast<size_t>(reach.y + kMaxReach) * kReaches +
              static_cast<size_t>(reach.x + kMaxReach)];
}

}  // namespace

const Stamp& stamp_of(const Paddle& paddle) { return drawn(paddle.reach).stamp; }

const std::vector<Point>& seed_footprint(Point reach) { return drawn(reach).footprint; }

}  // namespace fmmformer::tasks::pathfinder
