// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/positions.h"

#include <ATen/ATen.h>

#include <cmath>

namespace fmmformer {

using at::Tensor;

namespace {

Tensor angles(int64_t length, int64_t width) {
  TORCH_CHECK_VALUE(width >= 2 && width % 2 == 0, "positions: the width of a sinusoid code is ",
                    width, "; allowed is an even number");
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const Tensor exponent = at::arange(width / 2, options) * (-2.0 / static_cast<double>(width));
  const Tensor frequency = at::exp(exponent * std::log(10000.0));
  return at::outer(at::arange(length, options), frequency);
}

}  // namespace

Tensor interleaved_sinusoids(int64_t length, int64_t width) {
  const Tensor angle = angles(length, width);
  return at::stack({angle.sin(), angle.cos()}, -1).flatten(1).to(at::kFloat);
}

Tensor halved_sinusoids(int64_t length, int64_t width) {
  const Tensor angle = angles(length, width);
  return at::cat({angle.sin(), angle.cos()}, 1).to(at::kFloat);
}

}  // namespace fmmformer
