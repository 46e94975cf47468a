// SPDX-License-Identifier: Apache-2.0
#include "report/write_report.h"

#include <stdexcept>
#include <string>

#include "fmmformer/core/atomic_file.h"
#include "fmmformer/core/utc_time.h"

namespace fmmformer::report {
namespace {

namespace fs = std::filesystem;

void check_output(const fs::path& output) {
  if (output.empty()) throw std::invalid_argument("no output file; give one, report.html");
  if (fs::is_directory(output)) {
    throw std::invalid_argument("output '" + output.string() +
                                "' is a folder; give a file in it, '" +
                                (output / "report.html").string() + "'");
  }
  const fs::path folder = output.has_parent_path() ? output.parent_path() : ".";
  if (!fs::is_directory(folder)) {
    throw std::invalid_argument("output folder '" + folder.string() +
                                "' does not exist; create it first: mkdir -p " + folder.string());
  }
}

}  // namespace

int64_t write_report(const std::vector<fs::path>& paths, const fs::path& output,
                     PageOptions options) {
  check_output(output);
  std::vector<Record> records;
  for (const fs::path& file : find_records(paths)) records.push_back(read_record(file));
  if (records.empty()) {
    throw std::invalid_argument(
        "no runs to show; give run folders (runs/NAME) or record.json files");
  }
  if (options.written.empty()) options.written = utc_now();
  write_file_atomically(output, render_page(records, options));
  return static_cast<int64_t>(records.size());
}

}  // namespace fmmformer::report
