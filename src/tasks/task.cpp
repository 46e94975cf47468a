// SPDX-License-Identifier: Apache-2.0
#include "tasks/task.h"

#include <stdexcept>

#include "tasks/copy.h"

namespace fmmformer::tasks {

std::unique_ptr<Task> make_task(const TaskConfig& config, uint64_t seed) {
  switch (config.name) {
    case TaskName::kCopy:
      return std::make_unique<CopyTask>(config.copy, seed);
  }
  throw std::logic_error("make_task: a task without a case here");
}

}  // namespace fmmformer::tasks
