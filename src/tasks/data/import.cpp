// SPDX-License-Identifier: Apache-2.0
#include "tasks/data/import.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "fmmformer/core/random.h"
#include "tasks/data/folder.h"
#include "tasks/data/source_names.h"

namespace fmmformer::tasks {
namespace {

namespace fs = std::filesystem;

// Decides which examples of a source become the valid split, for everybody and for ever.
constexpr uint64_t kImportSeed = 2021;

using SplitWriters = std::map<Split, CacheWriter>;

void add_file(const fs::path& file, ImportSources& sources) {
  const std::string name = name_without_packing(file);
  if (name == "docs.tsv") {
    sources.documents = file;
  } else if (const auto split = split_in_name(name);
             split && (name.ends_with(".tsv") || name.ends_with(".bin"))) {
    sources.of(*split).push_back(file);
  }
}

std::vector<uint32_t> order_of(const CacheWriter& all, bool shuffled, uint64_t seed) {
  std::vector<uint32_t> order(static_cast<size_t>(all.examples()));
  std::iota(order.begin(), order.end(), 0U);
  if (shuffled) Random(seed).shuffle(std::span(order));
  return order;
}

CacheWriter read_all(const DataSet& data, const std::vector<fs::path>& files,
                     const fs::path& documents) {
  CacheWriter all;
  for (const fs::path& file : files) data.read({.path = file, .documents = documents}, all);
  return all;
}

SplitWriters read_splits(const DataSet& data, ImportSources sources) {
  SplitWriters splits;
  for (const Split split : kSplits) {
    if (sources.of(split).empty()) continue;
    const CacheWriter all = read_all(data, sources.of(split), sources.documents);
    const std::vector<uint32_t> order = order_of(
        all, data.split.shuffled, derive_seed(kImportSeed, enum_name(data.task), enum_name(split)));
    const bool cut = split == Split::kTrain && data.split.valid_share > 0 && sources.valid.empty();
    const size_t valid =
        cut ? std::max<size_t>(order.size() / static_cast<size_t>(data.split.valid_share), 1) : 0;
    const std::span<const uint32_t> kept(order.data(),
                                         order.size() - std::min(valid, order.size()));
    splits.emplace(split, all.subset(kept));
    if (cut) splits.emplace(Split::kValid, all.subset(std::span(order).subspan(kept.size())));
  }
  return splits;
}

SplitWriters cut_pool(const DataSet& data, const fs::path& pool) {
  const CacheWriter all = read_all(data, {pool}, {});
  const std::vector<uint32_t> order =
      order_of(all, /*shuffled=*/true, derive_seed(kImportSeed, enum_name(data.task), "pool"));
  const size_t valid = order.size() * 8 / 10, test = order.size() * 9 / 10;
  const std::span<const uint32_t> whole(order);
  SplitWriters splits;
  splits.emplace(Split::kTrain, all.subset(whole.first(valid)));
  splits.emplace(Split::kValid, all.subset(whole.subspan(valid, test - valid)));
  splits.emplace(Split::kTest, all.subset(whole.subspan(test)));
  return splits;
}

}  // namespace

const std::vector<fs::path>& ImportSources::of(Split split) const {
  return split == Split::kTrain ? train : split == Split::kValid ? valid : test;
}

std::vector<fs::path>& ImportSources::of(Split split) {
  return const_cast<std::vector<fs::path>&>(std::as_const(*this).of(split));
}

ImportSources find_sources(const DataSet& data, const fs::path& folder) {
  ImportSources sources;
  if (data.task == TaskName::kPathfinder) {
    // The release's own folder, or one of those that it lies in.
    for (const char* inner :
         {"", "curv_contour_length_14", "pathfinder32/curv_contour_length_14"}) {
      if (!fs::is_directory(folder / inner / "metadata")) continue;
      sources.pool = *inner == '\0' ? folder : folder / inner;
      return sources;
    }
  }
  for (const char* name : {"train", "val", "valid", "test"}) {
    if (fs::is_directory(folder / name / "pos")) {
      sources.of(*split_in_name(name)).push_back(folder / name);
    }
  }
  const std::vector<fs::path> files = files_in(folder, "");
  for (const fs::path& file : files) add_file(file, sources);
  for (const Split split : kSplits) refuse_twins(sources.of(split));
  if (sources.train.empty() && sources.valid.empty() && sources.test.empty()) {
    throw DataError("'" + folder.string() + "' has nothing for the task " +
                    std::string(enum_name(data.task)) +
                    "; wanted is: " + std::string(data.sources));
  }
  return sources;
}

std::vector<ImportedSplit> import_data(const DataSet& data, const ImportSources& sources,
                                       const fs::path& folder) {
  const SplitWriters splits =
      sources.pool.empty() ? read_splits(data, sources) : cut_pool(data, sources.pool);
  for (const auto& [split, writer] : splits) {
    if (writer.examples() > 0) continue;
    const std::vector<fs::path>& own = sources.of(split);
    throw DataError("no examples for the split " + std::string(enum_name(split)) + ": " +
                    (own.empty()
                         ? "the source that it is cut from has too few; give one with more, "
                           "or a source for every split"
                         : "'" + own.front().string() + "' has too few"));
  }
  std::vector<ImportedSplit> imported;
  for (const auto& [split, writer] : splits) {
    writer.write(folder, data.task, split);
    imported.push_back({split, writer.examples(), writer.documents()});
  }
  return imported;
}

}  // namespace fmmformer::tasks
