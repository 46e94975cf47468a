// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fmmformer::tasks::pathfinder {

/// Makes a line of 8-bit pixels shorter with a Lanczos filter of three lobes. The data set's
/// pictures went through Pillow, so this rounds as Pillow does: weights in fixed point, and a
/// picture's rows first, back to 8 bits, then its columns.
class Lanczos {
 public:
  Lanczos(size_t from, size_t to);

  /// Pixel `target` of the shorter line. Source pixels are `stride` apart.
  uint8_t pixel(size_t target, const uint8_t* source, size_t stride) const;

 private:
  struct Window {
    size_t first = 0;              // of the source
    std::vector<int32_t> weights;  // in units of 2^-22
  };
  std::vector<Window> windows_;  // by target
};

/// A square picture with side `from`, made smaller to side `to`.
std::vector<uint8_t> shrink_square(const std::vector<uint8_t>& picture, size_t from, size_t to);

}  // namespace fmmformer::tasks::pathfinder
