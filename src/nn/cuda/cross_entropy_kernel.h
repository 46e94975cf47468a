// SPDX-License-Identifier: Apache-2.0
// Cross entropy over rows of logits that a product has left in memory: one read for the losses, one
// read and write for the gradient. No torch here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "nn/cuda/element.h"

namespace fmmformer::cuda {

/// Logits [rows, stride], of which the first `classes` columns are meant: a product wants rows in
/// groups of eight, so that there may be more.
struct LogitRows {
  Element element = Element::kBFloat16;
  int64_t rows = 0;
  int64_t classes = 0;
  int64_t stride = 0;                // a multiple of eight
  void* logits = nullptr;            // aligned to 16 bytes
  const int64_t* targets = nullptr;  // [rows], each below classes
  float* sums = nullptr;             // [rows] log sum_c exp(logit_c)
};

/// Writes sums, and losses [rows] = sums - the target's logit.
cudaError_t cross_entropy_losses(const LogitRows& rows, float* losses, cudaStream_t on);

/// Rows that one thread block sums: partial sums of the bias's gradient have a row for each.
constexpr int64_t kCrossEntropyRows = 64;

/// Turns logits into their gradient, in place: (exp(logit - sum) - [class is target]) scale, with
/// scale [rows] the upstream gradient; 0 in the columns that are not meant. Leaves the columns'
/// sums of each kCrossEntropyRows rows in partials [ceil(rows / kCrossEntropyRows), stride].
cudaError_t cross_entropy_gradients(const LogitRows& rows, const float* scale, float* partials,
                                    cudaStream_t on);

}  // namespace fmmformer::cuda
