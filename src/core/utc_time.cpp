// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/core/utc_time.h"

#include <ctime>

namespace fmmformer {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[sizeof "2026-11-15T18:40:00Z"];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace fmmformer
