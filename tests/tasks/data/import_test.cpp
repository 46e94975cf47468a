// SPDX-License-Identifier: Apache-2.0
#include "tasks/data/import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "core/temporary_folder.h"
#include "tasks/data/grey_image.h"
#include "tasks/data_files.h"

namespace fmmformer::tasks {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string reviews(int count) {
  std::string table;
  for (int i = 0; i < count; ++i) {
    const std::string label = i < count / 2 ? "0" : "1";
    table += label + "\tid\treview " + std::to_string(i) + "\n";
  }
  return table;
}

std::vector<std::string> documents_of(const fs::path& folder, TaskName task, Split split) {
  const DataCache cache(folder, task, split);
  std::vector<std::string> documents;
  for (int64_t i = 0; i < cache.examples(); ++i) {
    documents.emplace_back(cache.document(cache.example(i).first));
  }
  return documents;
}

std::vector<std::string> names_of(const std::vector<fs::path>& paths) {
  std::vector<std::string> names;
  for (const fs::path& path : paths) names.push_back(path.filename());
  return names;
}

void expect_disjoint_and_complete(const std::vector<std::vector<std::string>>& splits,
                                  size_t count) {
  std::set<std::string> all;
  size_t sum = 0;
  for (const auto& split : splits) {
    all.insert(split.begin(), split.end());
    sum += split.size();
  }
  EXPECT_EQ(sum, count);
  EXPECT_EQ(all.size(), count);
}

TEST(Import, ATenthOfTheReviewsIsTheValidSplitAndBothAreMixed) {
  const TemporaryFolder folder;
  write_file(folder / "train.tsv", reviews(200));
  import_data(data_set(TaskName::kText), {.train = {folder / "train.tsv"}}, folder / "out");
  const auto train = documents_of(folder / "out", TaskName::kText, Split::kTrain);
  const auto valid = documents_of(folder / "out", TaskName::kText, Split::kValid);
  EXPECT_EQ(train.size(), 180U);
  EXPECT_EQ(valid.size(), 20U);
  expect_disjoint_and_complete({train, valid}, 200);
  const DataCache cache(folder / "out", TaskName::kText, Split::kTrain);
  int64_t positive = 0;
  for (int64_t i = 0; i < 90; ++i) positive += cache.example(i).label;
  EXPECT_NEAR(static_cast<double>(positive), 45, 20);  // not one class after the other
  EXPECT_FALSE(fs::exists(folder / "out/test.fmmdata"));
}

TEST(Import, IsTheSameOnEveryRunToTheLastByte) {
  const TemporaryFolder folder;
  write_file(folder / "train.tsv", reviews(50));
  for (const char* out : {"a", "b"}) {
    import_data(data_set(TaskName::kText), {.train = {folder / "train.tsv"}}, folder / out);
  }
  for (const char* file : {"train.fmmdata", "valid.fmmdata"}) {
    EXPECT_EQ(read_file(folder / "a" / file), read_file(folder / "b" / file));
  }
}

TEST(Import, ASplitWithASourceOfItsOwnTakesNothingFromTrain) {
  const TemporaryFolder folder;
  write_file(folder / "train.tsv", reviews(40));
  write_file(folder / "valid.tsv", reviews(6));
  const auto imported = import_data(
      data_set(TaskName::kText), {.train = {folder / "train.tsv"}, .valid = {folder / "valid.tsv"}},
      folder / "out");
  ASSERT_EQ(imported.size(), 2U);
  EXPECT_EQ(imported[0].examples, 40);
  EXPECT_EQ(imported[1].examples, 6);
}

TEST(Import, TheLastTenthOfThePicturesIsTheValidSplitInTheirOrder) {
  const TemporaryFolder folder;
  for (int batch = 0; batch < 2; ++batch) {
    std::string records;
    for (int i = 0; i < 10; ++i)
      records += record(2, std::string(kPixels, static_cast<char>(10 * batch + i)));
    write_file(folder / ("in/data_batch_" + std::to_string(batch + 1) + ".bin"), records);
  }
  const DataSet& data = data_set(TaskName::kImage);
  import_data(data, find_sources(data, folder / "in"), folder / "out");
  const auto train = documents_of(folder / "out", TaskName::kImage, Split::kTrain);
  const auto valid = documents_of(folder / "out", TaskName::kImage, Split::kValid);
  ASSERT_EQ(train.size(), 18U);
  ASSERT_EQ(valid.size(), 2U);
  for (int i = 0; i < 20; ++i) {
    const std::string& document = i < 18 ? train[static_cast<size_t>(i)] : valid[i - 18U];
    EXPECT_EQ(document[0], static_cast<char>(i));
  }
}

TEST(Import, AFolderOfPathfinderIsShuffledAndCutEightyTenTen) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "in/imgs");
  std::string list;
  for (int i = 0; i < 50; ++i) {
    const std::string name = "sample_" + std::to_string(i) + ".png";
    write_png(folder / ("in/imgs/" + name), std::string(kPixels, static_cast<char>(i)));
    list += "imgs " + name + " " + std::to_string(i) + " " + std::to_string(i % 2) + "\n";
  }
  write_file(folder / "in/metadata/0.npy", list);
  const DataSet& data = data_set(TaskName::kPathfinder);
  import_data(data, find_sources(data, folder / "in"), folder / "out");
  std::vector<std::vector<std::string>> splits;
  for (const Split split : kSplits) {
    splits.push_back(documents_of(folder / "out", TaskName::kPathfinder, split));
  }
  EXPECT_EQ(splits[0].size(), 40U);
  EXPECT_EQ(splits[1].size(), 5U);
  EXPECT_EQ(splits[2].size(), 5U);
  expect_disjoint_and_complete(splits, 50);
  EXPECT_FALSE(std::ranges::is_sorted(splits[0]));
}

TEST(Import, PathfindersFolderIsFoundInThoseThatItLiesIn) {
  const TemporaryFolder folder;
  const fs::path own = folder / "release/pathfinder32/curv_contour_length_14";
  fs::create_directories(own / "metadata");
  const DataSet& data = data_set(TaskName::kPathfinder);
  for (const fs::path& given : {own, own.parent_path(), folder / "release"}) {
    EXPECT_EQ(find_sources(data, given).pool, own) << given;
  }
}

TEST(Import, AMistakeInOneSourceLeavesTheFolderAsItWas) {
  const TemporaryFolder folder;
  const DataSet& data = data_set(TaskName::kListops);
  write_file(folder / "train.tsv", "[SM 1 2 ]\t3\n");
  import_data(data, {.train = {folder / "train.tsv"}}, folder / "out");
  const std::string before = read_file(folder / "out/train.fmmdata");
  write_file(folder / "train.tsv", "[SM 1 2 ]\t3\n[SM 4 5 ]\t9\n");
  write_file(folder / "test.tsv", "[SM 1 2 ]\tx\n");
  EXPECT_THAT(error_of([&] {
                import_data(data, {.train = {folder / "train.tsv"}, .test = {folder / "test.tsv"}},
                            folder / "out");
              }),
              HasSubstr("test.tsv:1"));
  EXPECT_EQ(read_file(folder / "out/train.fmmdata"), before);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "out"), {}), 1);
}

TEST(Import, TooFewExamplesForASplitAreAnError) {
  const TemporaryFolder folder;
  write_file(folder / "train.tsv", reviews(1));
  const auto error = [&](TaskName task) {
    return error_of(
        [&] { import_data(data_set(task), {.train = {folder / "train.tsv"}}, folder / "out"); });
  };
  EXPECT_THAT(error(TaskName::kText), HasSubstr("no examples for the split train"));
  write_file(folder / "train.tsv", "Source\tTarget\n");
  EXPECT_THAT(error(TaskName::kListops), AllOf(HasSubstr("no examples for the split train"),
                                               HasSubstr("train.tsv' has too few")));
  EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST(Import, FindsFilesByTheNamesThatTheyHave) {
  const TemporaryFolder folder;
  const DataSet& data = data_set(TaskName::kRetrieval);
  for (const char* name :
       {"new_aan_pairs.train.tsv", "new_aan_pairs.eval.tsv.xz", "new_aan_pairs.test.tsv.gz",
        "docs.tsv.xz", "docs_sources.tsv.xz", "aan_citation_network.txt", "README.md"}) {
    write_file(folder / name, "");
  }
  const ImportSources sources = find_sources(data, folder.path());
  EXPECT_THAT(names_of(sources.train), ElementsAre("new_aan_pairs.train.tsv"));
  EXPECT_THAT(names_of(sources.valid), ElementsAre("new_aan_pairs.eval.tsv.xz"));
  EXPECT_THAT(names_of(sources.test), ElementsAre("new_aan_pairs.test.tsv.gz"));
  EXPECT_EQ(sources.documents.filename(), "docs.tsv.xz");
}

TEST(Import, FindsBatchesAndFoldersOfReviews) {
  const TemporaryFolder folder;
  for (const char* name : {"data_batch_2.bin", "data_batch_1.bin", "test_batch.bin",
                           "batches.meta.txt", "pathfinder32_hard_val.bin"}) {
    write_file(folder / ("a/" + std::string(name)), "");
  }
  const ImportSources files = find_sources(data_set(TaskName::kImage), folder / "a");
  EXPECT_THAT(names_of(files.train), ElementsAre("data_batch_1.bin", "data_batch_2.bin"));
  EXPECT_THAT(names_of(files.valid), ElementsAre("pathfinder32_hard_val.bin"));
  EXPECT_THAT(names_of(files.test), ElementsAre("test_batch.bin"));
  for (const char* split : {"train", "test"}) {
    fs::create_directories(folder / "b" / split / "pos");
  }
  const ImportSources folders = find_sources(data_set(TaskName::kText), folder / "b");
  EXPECT_THAT(names_of(folders.train), ElementsAre("train"));
  EXPECT_THAT(names_of(folders.valid), IsEmpty());
  EXPECT_THAT(names_of(folders.test), ElementsAre("test"));
}

TEST(Import, AFolderWithNothingOrTheSameTwiceIsAnError) {
  const TemporaryFolder folder;
  const DataSet& data = data_set(TaskName::kListops);
  EXPECT_THAT(error_of([&] { find_sources(data, folder.path()); }),
              AllOf(HasSubstr("nothing for the task listops"), HasSubstr("basic_")));
  EXPECT_THAT(error_of([&] { find_sources(data, folder / "none"); }), HasSubstr("none"));
  write_file(folder / "basic_train.tsv", "");
  write_file(folder / "basic_train.tsv.xz", "");
  EXPECT_THAT(error_of([&] { find_sources(data, folder.path()); }), HasSubstr("twice"));
}

TEST(Import, ATaskThatMakesItsExamplesHasNoData) {
  EXPECT_THROW(data_set(TaskName::kCopy), std::invalid_argument);
  EXPECT_EQ(data_set(TaskName::kImage).task, TaskName::kImage);
}

}  // namespace
}  // namespace fmmformer::tasks
