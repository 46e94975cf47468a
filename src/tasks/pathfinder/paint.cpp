// SPDX-License-Identifier: Apache-2.0
#include "tasks/pathfinder/paint.h"

#include <algorithm>
#include <cmath>

#include "tasks/pathfinder/lanczos.h"

namespace fmmformer::tasks::pathfinder {
namespace {

constexpr double kTargetBrightness = 1.5, kDistractorBrightness = 2;

class Canvas {
 public:
  void stamp(const Paddle& paddle, double brightness) {
    const Stamp::Square& ink = stamp_of(paddle).ink;
    for (int y = 0; y < Stamp::kSide; ++y) {
      for (int x = 0; x < Stamp::kSide; ++x) {
        const Point place = paddle.at + Point{y - Stamp::kRadius, x - Stamp::kRadius};
        // Single precision as in the published generator: it decides how halves are rounded below.
        if (ink[y][x] != 0) brighten(place, static_cast<float>(ink[y][x] / 255.0 * brightness));
      }
    }
  }

  void mark(Point centre) {
    // The disc's radius and three lobes of the filter: nothing changes farther away.
    constexpr int kReach = 5;
    const int left = std::max(0, centre.x - kReach),
              right = std::min(kWindow, centre.x + kReach + 1);
    const int top = std::max(0, centre.y - kReach),
              bottom = std::min(kWindow, centre.y + kReach + 1);
    FineRows narrow = {};  // rows of the fine picture, already made narrower
    for (int dy = -kFineMarkerRadius; dy <= kFineMarkerRadius; ++dy) {
      const int y = kFineScale * centre.y + dy;
      if (y < 0 || y >= kFineWindow) continue;
      const FineRow row = disc_row(kFineScale * centre.x, dy);
      for (int x = left; x < right; ++x) narrow[y][x] = shrink().pixel(x, row.data(), 1);
    }
    for (int x = left; x < right; ++x) {
      for (int y = top; y < bottom; ++y) {
        brighten({y, x}, shrink().pixel(y, &narrow[0][x], kWindow) / 255.0);
      }
    }
  }

  // Scaled to 0 .. 255.
  Pixels pixels() const {
    const double scale = 255 / std::ranges::max(light_);
    Pixels pixels;
    std::ranges::transform(light_, pixels.begin(), [scale](double light) {
      return static_cast<uint8_t>(std::lround(light * scale));
    });
    return pixels;
  }

 private:
  using FineRow = std::array<uint8_t, kFineWindow>;
  using FineRows = std::array<std::array<uint8_t, kWindow>, kFineWindow>;

  static const Lanczos& shrink() {
    static const Lanczos kShrink(kFineWindow, kWindow);
    return kShrink;
  }

  // The row `dy` below the centre of a marker's disc.
  static FineRow disc_row(int centre, int dy) {
    FineRow row = {};
    for (int x = std::max(0, centre - kFineMarkerRadius);
         x <= std::min(kFineWindow - 1, centre + kFineMarkerRadius); ++x) {
      const int dx = x - centre;
      if (dy * dy + dx * dx <= kFineMarkerRadius * kFineMarkerRadius) row[x] = 255;
    }
    return row;
  }

  void brighten(Point place, double light) {
    if (!is_inside(place)) return;
    double& pixel = light_[index_of(place)];
    pixel = std::max(pixel, light);
  }

  std::array<double, kPixels> light_ = {};
};

}  // namespace

Pixels paint(const Scene& scene) {
  Canvas canvas;
  for (const Contour& target : scene.targets) {
    for (const Paddle& paddle : target) canvas.stamp(paddle, kTargetBrightness);
  }
  for (const Contour& distractor : scene.distractors) {
    for (const Paddle& paddle : distractor) canvas.stamp(paddle, kDistractorBrightness);
  }
  canvas.mark(scene.origin_marker);
  canvas.mark(scene.terminal_marker);
  return canvas.pixels();
}

}  // namespace fmmformer::tasks::pathfinder
