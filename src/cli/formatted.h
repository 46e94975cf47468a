// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string>

namespace fmmformer::cli {

constexpr double kMebibyte = 1024.0 * 1024.0;

/// printf into a string, for one line of a table.
template <typename... Values>
std::string formatted(const char* format, Values... values) {
  char buffer[256];
  std::snprintf(buffer, sizeof buffer, format, values...);
  return buffer;
}

}  // namespace fmmformer::cli
