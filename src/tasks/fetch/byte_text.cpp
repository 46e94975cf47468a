// SPDX-License-Identifier: Apache-2.0
#include "tasks/fetch/byte_text.h"

#include <array>
#include <cstdio>

namespace fmmformer::tasks::fetch {

std::string byte_text(int64_t bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"kB", "MB", "GB", "TB", "PB"};
  if (bytes < 1000) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1000;
  size_t unit = 0;
  while (value >= 999.95 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %s", value, kUnits[unit]);
  return text;
}

}  // namespace fmmformer::tasks::fetch
