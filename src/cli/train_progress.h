// SPDX-License-Identifier: Apache-2.0
// What `train` shows while it works.
#pragma once

#include <memory>

#include "train/progress.h"

namespace fmmformer::cli {

enum class ProgressStyle {
  kAuto,   // a live line on a terminal, plain lines in a pipe
  kQuiet,  // only what is wrong
  kJson,   // one object a line, on stdout
};
std::unique_ptr<train::TrainListener> make_progress(ProgressStyle style);

/// "1.2 s", "3 min 05 s", "2 h 14 min".
std::string duration_text(double seconds);
/// "950", "12.3 k", "4.56 M".
std::string count_text(double count);

}  // namespace fmmformer::cli
