// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

namespace fmmformer::report {

/// A number that a record does not have.
inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

}  // namespace fmmformer::report
