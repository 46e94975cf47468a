// SPDX-License-Identifier: Apache-2.0
// The text that `generate` goes on with, in the language of a run's task.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tasks/task.h"
#include "train/experiment.h"
#include "train/run_folder.h"

namespace fmmformer::cli {

/// What a task's tokens are to a person: words or bytes of a text, else the numbers of the tokens.
class PromptLanguage {
 public:
  /// `data`: where the vocabulary is, by --data; empty: where the run had its data. Throws
  /// UsageError when it is not there, std::invalid_argument when it is not the one the run was
  /// trained on.
  PromptLanguage(const train::RunPaths& run, train::ExperimentConfig experiment,
                 const std::string& data);

  /// The tokens of a prompt, at least one; without a prompt the end of a line, after which a text
  /// may begin. Throws UsageError when it is empty, has words that the vocabulary does not (unless
  /// they are to be read as <unk>), or numbers that are no tokens.
  std::vector<int64_t> tokens(const std::optional<std::string>& prompt, bool unknown_allowed) const;

  /// Puts tokens together to a text, one call a token: what each adds.
  std::function<std::string(int64_t)> writer() const;

 private:
  std::unique_ptr<tasks::Task> task_;
};

}  // namespace fmmformer::cli
