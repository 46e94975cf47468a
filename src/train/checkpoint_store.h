// SPDX-License-Identifier: Apache-2.0
// The checkpoints of one run:
//   checkpoints/step-00000100/model.safetensors, optimizer.safetensors, state.json
// A checkpoint is written under a temporary name, synced and renamed: a crash at any moment leaves
// the ones before it, whole. state.json holds the sizes and checksums of its neighbours and of
// itself, so that what a bad disk or a bad copy does to a checkpoint is found when it is read.
// Without torch: tensor_file.h turns tensors into what is stored here, and back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "fmmformer/core/safetensors.h"

namespace fmmformer::train {

using Json = nlohmann::ordered_json;
using SafeTensorViews = std::vector<std::pair<std::string, SafeTensorView>>;

/// A checkpoint to be written; the tensors' memory belongs to the caller.
struct CheckpointContent {
  SafeTensorViews model;
  SafeTensorViews optimizer;
  Json state = Json::object();  // what else is needed to go on
  bool best = false;            // the best so far: kept until a better one comes
};

struct LoadedCheckpoint {
  int64_t step = 0;
  bool best = false;
  SafeTensorsFile model;
  SafeTensorsFile optimizer;  // empty when only the model was asked for
  Json state;
};

/// A checkpoint is not what was written; says which, what is wrong with it and what there is
/// instead.
class DamagedCheckpoint : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct SkippedCheckpoint {
  int64_t step = 0;
  std::string reason;
};

struct GoodCheckpoint {
  std::optional<int64_t> step;             // none: there is no good one
  std::vector<SkippedCheckpoint> skipped;  // damaged ones that would have come before it
};

enum class CheckpointParts { kAll, kModel };

/// kWrite belongs to the process that holds the run folder's lock: opening creates the folder and
/// removes what a killed process left half written. kRead changes nothing.
enum class StoreAccess { kRead, kWrite };

/// "10, 20", for error texts; "none".
std::string steps_text(const std::vector<int64_t>& steps);

class CheckpointStore {
 public:
  /// `folder` is the run's checkpoints folder. Of the checkpoints written, the last `keep` (at
  /// least 1) and the best are kept. Throws std::runtime_error when the folder cannot be used.
  CheckpointStore(std::filesystem::path folder, StoreAccess access, int64_t keep = 1);

  /// Writes the checkpoint of `step`, replacing one of the same step, then removes those that are
  /// not to be kept. Throws std::runtime_error, naming the cause and the way out, when it cannot be
  /// written; the older ones are untouched then and nothing half written stays.
  void save(int64_t step, const CheckpointContent& content) const;

  /// Steps that have a checkpoint, rising; intact or not.
  std::vector<int64_t> steps() const;
  std::optional<int64_t> latest() const;
  /// The newest checkpoint that was written as the best so far, or none.
  std::optional<int64_t> best() const;

  /// Reads and checks. Throws DamagedCheckpoint, which also offers those that are good, or
  /// std::invalid_argument with the steps there are when `step` is not among them.
  LoadedCheckpoint load(int64_t step, CheckpointParts parts = CheckpointParts::kAll) const;

  /// The newest checkpoint whose files are all what was written (each is read), and what was
  /// skipped on the way.
  GoodCheckpoint latest_good(CheckpointParts parts = CheckpointParts::kAll) const;

  /// The checkpoint to take a model from: the best, or the newest good one where the best is
  /// damaged or there is none.
  GoodCheckpoint best_good() const;

  /// Steps whose checkpoints are what was written (each is read), rising.
  std::vector<int64_t> good_steps(CheckpointParts parts = CheckpointParts::kAll) const;

  /// Removes the checkpoints after `step`: resuming there abandons them.
  void discard_after(int64_t step) const;

  std::filesystem::path path_of(int64_t step) const;

 private:
  void remove_leftovers() const;
  void remove_checkpoint(int64_t step) const;
  void remove_old() const;
  /// What is wrong with a checkpoint, or "".
  std::string problem_of(int64_t step, CheckpointParts parts) const;

  std::filesystem::path folder_;
  int64_t keep_;
};

}  // namespace fmmformer::train
