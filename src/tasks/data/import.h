// SPDX-License-Identifier: Apache-2.0
// From the files that people have to the data files that tasks read.
#pragma once

#include <filesystem>
#include <vector>

#include "tasks/data/data_set.h"

namespace fmmformer::tasks {

struct ImportSources {
  std::vector<std::filesystem::path> train, valid, test;
  std::filesystem::path documents;  // pairs only: the file that has the texts
  std::filesystem::path pool;  // all splits in one: shuffled by a fixed seed and cut 80 / 10 / 10

  /// Of a split.
  std::vector<std::filesystem::path>& of(Split split);
  const std::vector<std::filesystem::path>& of(Split split) const;
};

/// What a folder holds, by the names that these files have where they come from: ..train.tsv,
/// ..val.bin.xz, test/pos, metadata and so on. Throws DataError when there is nothing, or the same
/// file twice.
ImportSources find_sources(const DataSet& data, const std::filesystem::path& folder);

struct ImportedSplit {
  Split split = Split::kTrain;
  int64_t examples = 0;
  int64_t documents = 0;
};

/// Reads all sources, then writes FOLDER/SPLIT.fmmdata for each split there is: a mistake in any of
/// them leaves the folder as it was. DataSet::split says what becomes of a split without a source.
/// Throws DataError for wrong input, std::runtime_error when a file cannot be written.
std::vector<ImportedSplit> import_data(const DataSet& data, const ImportSources& sources,
                                       const std::filesystem::path& folder);

}  // namespace fmmformer::tasks
