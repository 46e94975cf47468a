// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace fmmformer {

/// An operator's options as `int[] codes, float[] scales`: how they reach the operators behind the
/// public one.
struct PackedOptions {
  std::vector<int64_t> codes;
  std::vector<double> scales;
};

}  // namespace fmmformer
