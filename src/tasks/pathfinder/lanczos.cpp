// SPDX-License-Identifier: Apache-2.0
#include "tasks/pathfinder/lanczos.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

namespace fmmformer::tasks::pathfinder {
namespace {

constexpr int kLobes = 3;
constexpr int kFractionBits = 22;  // Pillow's: 32 less 8 for the pixel and 2 for overshoot

double sinc(double x) {
  return x == 0 ? 1 : std::sin(std::numbers::pi * x) / (std::numbers::pi * x);
}

double lanczos(double x) { return std::abs(x) < kLobes ? sinc(x) * sinc(x / kLobes) : 0; }

}  // namespace

Lanczos::Lanczos(size_t from, size_t to) {
  const auto scale = static_cast<double>(from) / static_cast<double>(to);
  for (size_t target = 0; target < to; ++target) {
    const double centre = (static_cast<double>(target) + 0.5) * scale;
    const auto first = static_cast<size_t>(std::max(0L, std::lround(centre - kLobes * scale)));
    const auto last = std::min(from, static_cast<size_t>(std::lround(centre + kLobes * scale)));
    std::vector<double> exact;
    for (size_t i = first; i < last; ++i) {
      exact.push_back(lanczos((static_cast<double>(i) + 0.5 - centre) / scale));
    }
    const double sum = std::accumulate(exact.begin(), exact.end(), 0.0);
    Window window{.first = first};
    for (const double weight : exact) {
      window.weights.push_back(
          static_cast<int32_t>(std::lround(weight / sum * (1 << kFractionBits))));
    }
    windows_.push_back(std::move(window));
  }
}

uint8_t Lanczos::pixel(size_t target, const uint8_t* source, size_t stride) const {
  const Window& window = windows_[target];
  int32_t sum = 1 << (kFractionBits - 1);
  const uint8_t* place = source + window.first * stride;
  for (const int32_t weight : window.weights) {
    sum += weight * *place;
    place += stride;
  }
  return static_cast<uint8_t>(std::clamp(sum >> kFractionBits, 0, 255));
}

std::vector<uint8_t> shrink_square(const std::vector<uint8_t>& picture, size_t from, size_t to) {
  const Lanczos lanczos(from, to);
  std::vector<uint8_t> narrow, small;
  for (size_t y = 0; y < from; ++y) {
    for (size_t x = 0; x < to; ++x) narrow.push_back(lanczos.pixel(x, &picture[y * from], 1));
  }
  for (size_t y = 0; y < to; ++y) {
    for (size_t x = 0; x < to; ++x) small.push_back(lanczos.pixel(y, &narrow[x], to));
  }
  return small;
}

}  // namespace fmmformer::tasks::pathfinder
