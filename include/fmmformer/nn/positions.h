// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fmmformer {

/// Fixed position codes, [length, width] in fp32 (computed in double); width is even and
/// w_m = 10000^(-2m / width).

/// row p: sin(p w_0), cos(p w_0), sin(p w_1), cos(p w_1), ...
at::Tensor interleaved_sinusoids(int64_t length, int64_t width);

/// row p: sin(p w_0), sin(p w_1), ..., cos(p w_0), cos(p w_1), ...
at::Tensor halved_sinusoids(int64_t length, int64_t width);

}  // namespace fmmformer
