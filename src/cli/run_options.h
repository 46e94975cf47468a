// SPDX-License-Identifier: Apache-2.0
// A run folder and one of its checkpoints, as the commands that use a trained model have them.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "train/model_files.h"

namespace CLI {
class App;
}

namespace fmmformer::cli {

struct RunOptions {
  std::string run;    // by --run
  std::string first;  // the first argument without a name: the run, unless --run gave it
  int64_t step = -1;  // none was named
};

/// RUN, --run and --step.
void add_run_options(CLI::App& app, RunOptions& options);

/// The one folder that was named; throws UsageError, with `example`, where none or two were.
std::string run_folder_of(const RunOptions& options, const std::string& example);

/// Loads the model of the run at `folder` and tells the user, on stderr, where a damaged checkpoint
/// was passed over.
train::TrainedModel load_trained(const std::string& folder, const RunOptions& options,
                                 const c10::Device& device);

/// The same model in fp32 on the CPU, where bf16 saves nothing: its weights stay what they are, and
/// what is computed with them is finer. On a GPU the model is left alone.
train::TrainedModel in_full_precision(train::TrainedModel trained);

}  // namespace fmmformer::cli
