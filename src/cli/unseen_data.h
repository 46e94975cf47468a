// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tasks/task.h"

namespace fmmformer::cli {

/// Files of the user's to score a model on, in any form that `data import` reads, or one .fmmdata.
struct UnseenData {
  std::vector<std::string> files;
  std::string documents;  // pairs only: the file that has the texts
};

struct UnseenTask {
  std::unique_ptr<tasks::Task> task;
  tasks::Split split = tasks::Split::kTest;  // under which the task has them
};

/// The task over these files instead of its own. What is imported lies in a temporary folder that
/// is gone when this returns, or throws, or is stopped by Ctrl-C; the task keeps it mapped. Throws
/// std::invalid_argument when the task has no files, tasks::DataError with file and line for what
/// is wrong in one.
UnseenTask task_over(const UnseenData& data, tasks::TaskConfig config);

}  // namespace fmmformer::cli
