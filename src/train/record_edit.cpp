// SPDX-License-Identifier: Apache-2.0
#include "train/record_edit.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "train/run_folder.h"

namespace fmmformer::train {

void check_has_record(const std::filesystem::path& run) {
  if (!RunPaths(run).read_record().empty()) return;
  throw std::invalid_argument("'" + run.string() +
                              "' has no record.json to keep findings in; `fmmformer train` makes "
                              "one");
}

void edit_record(const std::filesystem::path& run,
                 const std::function<void(nlohmann::ordered_json&)>& change) {
  // Asked before locking, so that a folder without a record gets no lock file.
  if (std::filesystem::exists(RunPaths(run).config())) check_has_record(run);
  const RunFolder folder = RunFolder::resume(run);
  nlohmann::ordered_json record = folder.read_record();
  change(record);
  folder.write_record(record);
}

}  // namespace fmmformer::train
