// SPDX-License-Identifier: Apache-2.0
#include "tasks/task.h"

#include <stdexcept>

#include "tasks/copy.h"
#include "tasks/image.h"
#include "tasks/listops.h"
#include "tasks/pathfinder.h"
#include "tasks/retrieval.h"
#include "tasks/text.h"
#include "tasks/wikitext.h"

namespace fmmformer::tasks {

std::unique_ptr<Task> make_task(const TaskConfig& config, uint64_t seed) {
  switch (config.name) {
    case TaskName::kCopy:
      return std::make_unique<CopyTask>(config.copy, seed);
    case TaskName::kListops:
      return std::make_unique<ListopsTask>(config.listops, seed);
    case TaskName::kText:
      return std::make_unique<TextTask>(config.text, seed);
    case TaskName::kRetrieval:
      return std::make_unique<RetrievalTask>(config.retrieval, seed);
    case TaskName::kImage:
      return std::make_unique<ImageTask>(config.image, seed);
    case TaskName::kPathfinder:
      return std::make_unique<PathfinderTask>(config.pathfinder, seed);
    case TaskName::kWikitext:
      return std::make_unique<WikitextTask>(config.wikitext);
  }
  throw std::logic_error("make_task: a task without a case here");
}

std::string& data_folder(TaskConfig& config) {
  switch (config.name) {
    case TaskName::kCopy:
      break;
    case TaskName::kListops:
      return config.listops.data;
    case TaskName::kText:
      return config.text.data;
    case TaskName::kRetrieval:
      return config.retrieval.data;
    case TaskName::kImage:
      return config.image.data;
    case TaskName::kPathfinder:
      return config.pathfinder.data;
    case TaskName::kWikitext:
      return config.wikitext.data;
  }
  throw std::invalid_argument("the task " + std::string(enum_name(config.name)) +
                              " has no data files: it makes its examples while it runs");
}

}  // namespace fmmformer::tasks
