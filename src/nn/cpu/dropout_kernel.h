// SPDX-License-Identifier: Apache-2.0
// The arithmetic of nn/dropout on the CPU: plain C++ and Highway, no torch.
#pragma once

#include <cstdint>

namespace fmmformer::cpu {

struct DropoutStream {
  uint64_t seed = 0;
  uint32_t site = 0;
  double probability = 0;
};

/// A row that is added to every row of x: x is [rows, columns].
struct RowBias {
  const float* values = nullptr;  // none: nothing is added
  int64_t columns = 0;
};

// Elements begin .. begin + count of the stream, begin a multiple of 4; x, residual and out point
// to element `begin`. f is 0 or 1 / (1 - p), and 1 when p is 0. Outputs may be their inputs.
void dropout_factors(const DropoutStream& stream, int64_t begin, int64_t count, float* f);
void dropout_multiply(const DropoutStream& stream, int64_t begin, int64_t count, const float* x,
                      float* out);  // x f
void dropout_add(const DropoutStream& stream, int64_t begin, int64_t count, const float* x,
                 const RowBias& bias, const float* residual,
                 float* out);  // residual + (x + bias) f
void dropout_relu(const DropoutStream& stream, int64_t begin, int64_t count, const float* x,
                  const RowBias& bias, float* out);  // max(x + bias, 0) f

}  // namespace fmmformer::cpu
