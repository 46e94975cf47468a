// SPDX-License-Identifier: Apache-2.0
// The measures of Long Range Arena's Pathfinder32, in pixels.
#pragma once

#include <cstddef>

namespace fmmformer::tasks::pathfinder {

constexpr int kWindow = 32;       // the picture's side
constexpr int kPadding = 1;       // no contour enters this frame
constexpr int kPaddleLength = 2;  // a contour is a dashed line; its dashes are called paddles
constexpr int kMargin = 1;        // free space around a paddle
constexpr int kSeedDistance = 7;  // from the first contour's first point to the second's
constexpr int kFineScale = 2;     // shapes are drawn that much larger, then made smaller
constexpr int kFineWindow = kFineScale * kWindow;
constexpr int kFineMarkerRadius = 3;  // 1.5 pixels

struct Point {
  int y = 0, x = 0;

  bool operator==(const Point&) const = default;
  friend Point operator+(Point a, Point b) { return {a.y + b.y, a.x + b.x}; }
};

constexpr size_t kPixels = size_t{kWindow} * kWindow;

/// Where a pixel is in an array of kPixels, row after row.
constexpr size_t index_of(Point point) {
  return static_cast<size_t>(point.y) * kWindow + static_cast<size_t>(point.x);
}

inline bool is_inside(Point point) {
  return point.y >= 0 && point.y < kWindow && point.x >= 0 && point.x < kWindow;
}

}  // namespace fmmformer::tasks::pathfinder
