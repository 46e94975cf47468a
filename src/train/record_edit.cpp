// SPDX-License-Identifier: Apache-2.0
#include "train/record_edit.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "train/run_folder.h"

namespace fmmformer::train {

void edit_record(const std::filesystem::path& run,
                 const std::function<void(nlohmann::ordered_json&)>& change) {
  const RunFolder folder = RunFolder::resume(run);
  nlohmann::ordered_json record = folder.read_record();
  if (record.empty()) {
    throw std::invalid_argument("'" + run.string() +
                                "' has no record.json yet; train it first (fmmformer train)");
  }
  change(record);
  folder.write_record(record);
}

}  // namespace fmmformer::train
