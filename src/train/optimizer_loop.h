// SPDX-License-Identifier: Apache-2.0
// The loops over elements that the CPU runs, on plain memory. A block is a stretch of one tensor of
// a fixed length: sums over blocks are then the same bits for every number of threads.
#pragma once

#include <cstdint>

#include "train/optimizer_math.h"

namespace fmmformer::train {

/// Elements of a block: 64 kB of each fp32 stream, so that the streams of one block fit in a
/// core's second-level cache and a block is worth handing to a thread (about 10 us).
inline constexpr int64_t kBlockElements = 16384;

enum class ElementType { kFloat, kDouble, kBFloat16, kHalf };

/// A block of one parameter. T = double for kDouble, else float. `weight` is the parameter itself
/// for kFloat and kDouble, else its fp32 master.
struct UpdateBlock {
  ElementType type = ElementType::kFloat;
  void* parameter = nullptr;
  const void* gradient = nullptr;
  void* weight = nullptr;
  void* first_moment = nullptr;
  void* second_moment = nullptr;
  int64_t begin = 0;
  int64_t end = 0;
};

/// Advances the elements begin..end; the gradient counts gradient_scale times.
void update_block(const UpdateBlock& block, const UpdateFactors<double>& factors,
                  double gradient_scale);

/// Sum of the squares of data[begin..end), in double.
double sum_of_squares(ElementType type, const void* data, int64_t begin, int64_t end);

/// data[begin..end) *= factor.
void scale_block(ElementType type, void* data, int64_t begin, int64_t end, double factor);

}  // namespace fmmformer::train
