// SPDX-License-Identifier: Apache-2.0
// What is known about the data of a task without looking at it: one table entry a task.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "tasks/config.h"
#include "tasks/data/cache.h"

namespace fmmformer::tasks {

/// Where (a part of) a split is read from.
struct Source {
  std::filesystem::path path;
  std::filesystem::path documents;  // pairs only: the file that has the texts
};

/// Adds what a source holds. Throws DataError with file and place for what is not as it should be.
using ReadSource = void (*)(const Source& source, CacheWriter& out);

/// How a source for training is cut up where the others have none.
struct SplitRule {
  bool shuffled = false;    // by a fixed seed: the source has one class after another
  int64_t valid_share = 0;  // its last 1 / valid_share becomes the valid split; 0: nothing
};

struct DataSet {
  TaskName task = {};
  std::string_view about;
  std::string_view sources;                  // what can be imported
  std::span<const std::string_view> labels;  // names of the classes
  std::span<const std::string_view> words;   // what the bytes stand for; none: for themselves
  bool pair = false;                         // an example has two documents
  bool picture = false;                      // a document is kPixels grey values
  SplitRule split;
  ReadSource read = nullptr;
};

/// All of them.
std::span<const DataSet* const> data_sets();

/// Throws std::invalid_argument for a task that generates its examples.
const DataSet& data_set(TaskName task);

/// A byte of a document for the eyes of a person, in ASCII.
std::string byte_text(const DataSet& data, uint8_t byte);

}  // namespace fmmformer::tasks
