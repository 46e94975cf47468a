// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string>

namespace fmmformer::cli {

/// printf into a string, for one line of a table.
template <typename... Values>
std::string formatted(const char* format, Values... values) {
  char buffer[160];
  std::snprintf(buffer, sizeof buffer, format, values...);
  return buffer;
}

}  // namespace fmmformer::cli
