// SPDX-License-Identifier: Apache-2.0
#include "train/kept_run.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "fmmformer/core/atomic_file.h"
#include "train/checkpoint_store.h"
#include "train/file_system.h"
#include "train/run_folder.h"

namespace fmmformer::train {
namespace {

namespace fs = std::filesystem;

Json with_five_digits(const Json& number) {
  if (!number.is_number_float()) return number;
  const double value = number.get<double>();
  if (value == 0) return number;
  const double scale = std::pow(10, 4 - std::floor(std::log10(std::abs(value))));
  return std::round(value * scale) / scale;
}

Json record_of(const RunPaths& paths) {
  Json record = paths.read_record();
  if (!record.empty()) return record;
  throw std::invalid_argument("'" + paths.folder().string() +
                              "' has no record.json yet; train it first (fmmformer train)");
}

}  // namespace

Json compact_record(Json record) {
  for (const char* large : {"maps", "blend", "pictures"}) record.erase(large);
  if (!record.contains("curves")) return record;
  record["curves"].erase("train");
  for (auto& [split, curve] : record["curves"].items()) {
    for (Json& point : curve) {
      for (auto& [member, value] : point.items()) value = with_five_digits(value);
    }
  }
  return record;
}

void keep_record(const fs::path& run, const fs::path& to) {
  const Json record = compact_record(record_of(RunPaths(run)));
  create_folder(to);
  write_file_atomically(RunPaths(to).record(), record.dump() + "\n");
}

void keep_run(const fs::path& run, const fs::path& to) {
  const RunPaths from(run), kept(to);
  const std::string config = from.read_config();
  const CheckpointStore store(from.checkpoints(), StoreAccess::kRead);
  const auto best = store.best();
  if (!best) {
    throw std::invalid_argument("'" + run.string() +
                                "' has no best checkpoint yet: it was never evaluated; train it "
                                "on (fmmformer train --resume)");
  }
  store.load(*best, CheckpointParts::kModel);  // reads and checks it
  const std::string weights = read_text(store.path_of(*best) / "model.safetensors");
  create_folder(to);
  write_file_atomically(kept.kept_model(), weights);
  write_file_atomically(kept.config(), config);
  keep_record(run, to);
}

}  // namespace fmmformer::train
