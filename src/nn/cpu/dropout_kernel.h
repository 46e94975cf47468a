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

// Elements begin .. begin + count of the stream, begin a multiple of 4; the pointers point to
// element `begin`. f is 0 or 1 / (1 - p). Outputs may be their inputs.
void dropout_factors(const DropoutStream& stream, int64_t begin, int64_t count, float* f);
void dropout_multiply(const DropoutStream& stream, int64_t begin, int64_t count, const float* x,
                      float* out);  // x f
void dropout_multiply_add(const DropoutStream& stream, int64_t begin, int64_t count, const float* x,
                          const float* residual, float* out);  // residual + x f
void dropout_relu(const DropoutStream& stream, int64_t begin, int64_t count, const float* x,
                  float* out);  // max(x, 0) f

}  // namespace fmmformer::cpu
