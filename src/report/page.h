// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "report/record.h"

namespace fmmformer::report {

struct PageOptions {
  std::string title = "FMMformer report";
  std::string written;               // when; shown in the footer where given
  int64_t most_curve_points = 1000;  // more than a screen has pixels for
  // Experiments of Long Range Arena without runs of their own, and whose stand for them.
  std::map<std::string, std::string> lra_stand_ins = {};
};

/// One HTML page that needs no other file and no network: styles, scripts, Chart.js and the numbers
/// are in it. Whatever the records contain is shown as text.
std::string render_page(const std::vector<Record>& records, const PageOptions& options);

}  // namespace fmmformer::report
