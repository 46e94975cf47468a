// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fmmformer::cli {

/// "512..65536" -> 512, 1024, .. 65536 (doubling); "100,1000" -> both; "4096" -> itself. Throws
/// std::invalid_argument otherwise.
std::vector<int64_t> parse_lengths(const std::string& text);

/// "a,b,c" -> a, b, c.
std::vector<std::string> split_at_commas(const std::string& text);

}  // namespace fmmformer::cli
