// SPDX-License-Identifier: Apache-2.0
// The numbers of a page as one JSON document: all that its scripts draw from.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "report/page.h"
#include "report/record.h"

namespace fmmformer::report {

nlohmann::json page_data(const std::vector<Record>& records, const PageOptions& options);

/// A matrix in 16 bits a value: {"rows", "columns", "low", "high", "base64"}, where level n of
/// 65535 is low + n (high - low) / 65535. A value that is not finite counts as 0.
nlohmann::json packed_matrix(const Matrix& matrix);

}  // namespace fmmformer::report
