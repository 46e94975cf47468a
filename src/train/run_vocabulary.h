// SPDX-License-Identifier: Apache-2.0
// Which vocabulary a language model was trained on. Its tokens are numbers: with other words, or
// the same in another order, they would still be read, and mean nothing.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tasks/corpus/vocabulary.h"
#include "train/experiment.h"
#include "train/run_folder.h"

namespace fmmformer::train {

/// What a record says of it: {"level": "word", "size": 33278, "fingerprint": "1a2b3c4d"}, the last
/// as the first line of vocabulary.txt has it.
nlohmann::ordered_json vocabulary_record(const tasks::Vocabulary& vocabulary);

inline constexpr const char* kRestoreData =
    "restore the data that it was trained on, or train a new run on this";

/// Throws std::invalid_argument, which ends with `way_out`, when the data that `experiment` names
/// holds another vocabulary than the run was trained on. The record of an earlier version does not
/// say which that was: it must then have as many tokens as the model. Tasks without a text pass.
void check_vocabulary(const RunPaths& run, const ExperimentConfig& experiment,
                      const std::string& way_out = kRestoreData);

}  // namespace fmmformer::train
