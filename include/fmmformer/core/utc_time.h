// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace fmmformer {

/// "2026-11-15T18:40:00Z": now, for records.
std::string utc_now();

}  // namespace fmmformer
