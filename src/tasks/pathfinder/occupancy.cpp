// SPDX-License-Identifier: Apache-2.0
#include "tasks/pathfinder/occupancy.h"

#include <algorithm>
#include <bit>

namespace fmmformer::tasks::pathfinder {
namespace {

constexpr int kFull = 255;
constexpr int kTooMuchTogether = kFull * 18 / 10;  // 459
constexpr int kMostWhenFree = kFull * 3 / 10;      // 76

// The part of a stamp's rows, or columns, that lies inside the picture.
struct Span {
  int first, last;
};

Span inside(int centre) {
  return {std::max(0, Stamp::kRadius - centre),
          std::min(Stamp::kSide, kWindow + Stamp::kRadius - centre)};
}

}  // namespace

Occupancy::Occupancy() {
  for (int i = 0; i < kWindow; ++i) {
    for (int depth = 0; depth < kPadding; ++depth) {
      const int end = kWindow - 1 - depth;
      cell(depth, i) = cell(end, i) = cell(i, depth) = cell(i, end) = kFull;
    }
  }
}

bool Occupancy::admits(const Paddle& paddle) const {
  const Stamp::Square& guard = stamp_of(paddle).guard;
  const Span rows = inside(paddle.at.y), columns = inside(paddle.at.x);
  const int top = paddle.at.y - Stamp::kRadius, left = paddle.at.x - Stamp::kRadius;
  int most = 0;
  for (int y = rows.first; y < rows.last; ++y) {
    for (int x = columns.first; x < columns.last; ++x) {
      most = std::max(most, guard[y][x] + cell(top + y, left + x));
    }
  }
  return most < kTooMuchTogether;
}

void Occupancy::add(const Paddle& paddle) {
  const Stamp::Square& guard = stamp_of(paddle).guard;
  const Span rows = inside(paddle.at.y), columns = inside(paddle.at.x);
  const int top = paddle.at.y - Stamp::kRadius, left = paddle.at.x - Stamp::kRadius;
  for (int y = rows.first; y < rows.last; ++y) {
    for (int x = columns.first; x < columns.last; ++x) {
      uint8_t& covered = cell(top + y, left + x);
      covered = std::max(covered, guard[y][x]);
    }
  }
}

int Occupancy::room_around(Point point) const {
  int covered = 0;
  for (const Point offset : {Point{0, 0}, Point{-1, 0}, Point{1, 0}, Point{0, -1}, Point{0, 1}}) {
    const Point near = point + offset;
    if (is_inside(near)) covered = std::max<int>(covered, cell(near.y, near.x));
  }
  return kFull - covered;
}

Occupancy::Rows Occupancy::blocked() const {
  Rows rows = {};
  for (int y = 0; y < kWindow; ++y) {
    for (int x = 0; x < kWindow; ++x) {
      rows[y] |= static_cast<uint32_t>(cell(y, x) > kMostWhenFree) << x;
    }
  }
  return rows;
}

Occupancy::Rows free_places(const Occupancy::Rows& blocked, const std::vector<Point>& offsets) {
  Occupancy::Rows reached = {};
  for (const Point offset : offsets) {
    for (int y = std::max(0, -offset.y); y < std::min(kWindow, kWindow - offset.y); ++y) {
      const uint32_t row = blocked[y + offset.y];
      reached[y] |= offset.x >= 0 ? row >> offset.x : row << -offset.x;
    }
  }
  for (uint32_t& row : reached) row = ~row;
  return reached;
}

int count(const Occupancy::Rows& places) {
  int sum = 0;
  for (const uint32_t row : places) sum += std::popcount(row);
  return sum;
}

Point nth(const Occupancy::Rows& places, int n) {
  int y = 0;
  while (n >= std::popcount(places[y])) n -= std::popcount(places[y++]);
  uint32_t row = places[y];
  for (; n > 0; --n) row &= row - 1;  // without its lowest bit
  return {y, std::countr_zero(row)};
}

}  // namespace fmmformer::tasks::pathfinder
