// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "core/temporary_folder.h"
#include "train/checkpoint_sample.h"

namespace fmmformer::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

void put_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

class CheckpointStoreTest : public testing::Test {
 protected:
  CheckpointStore store(int64_t keep = 3) const {
    return {folder_ / "checkpoints", StoreAccess::kWrite, keep};
  }
  void save(const CheckpointStore& store, int64_t step, bool best = false) const {
    store.save(step, CheckpointSample(step, 6, best).content());
  }
  std::string damage_report(const CheckpointStore& store, int64_t step) const {
    try {
      store.load(step);
    } catch (const DamagedCheckpoint& error) {
      return error.what();
    }
    return "no error";
  }

  const TemporaryFolder folder_;
};

TEST_F(CheckpointStoreTest, WhatIsSavedIsLoaded) {
  const CheckpointStore checkpoints = store();
  save(checkpoints, 100, true);
  const LoadedCheckpoint loaded = checkpoints.load(100);
  EXPECT_EQ(loaded.step, 100);
  EXPECT_TRUE(loaded.best);
  EXPECT_EQ(loaded.state.dump(), R"({"seed":7,"value":100,"share":0.1})");
  EXPECT_EQ(loaded.model.tensors.front().first, "weight");
  EXPECT_EQ(loaded.optimizer.tensors.front().first, "weight.first_moment");
  EXPECT_EQ(first_value(loaded.model), 100.0F);
  EXPECT_TRUE(loaded.model.checksummed);
  EXPECT_TRUE(checkpoints.load(100, CheckpointParts::kModel).optimizer.tensors.empty());
}

TEST_F(CheckpointStoreTest, FilesHaveTheNamesOfTheDesign) {
  save(store(), 100);
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    EXPECT_TRUE(std::filesystem::exists(folder_.path() / "checkpoints/step-00000100" / name));
  }
}

TEST_F(CheckpointStoreTest, AnEmptyStoreHasNoLatestAndNoBest) {
  const CheckpointStore none(folder_ / "missing", StoreAccess::kRead);
  EXPECT_EQ(none.latest(), std::nullopt);
  EXPECT_EQ(none.best(), std::nullopt);
  EXPECT_EQ(none.latest_good().step, std::nullopt);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "missing"));
}

TEST_F(CheckpointStoreTest, KeepsTheLastFewAndTheBest) {
  const CheckpointStore checkpoints = store(2);
  for (int64_t step = 1; step <= 6; ++step) save(checkpoints, step, step == 1 || step == 2);
  EXPECT_THAT(checkpoints.steps(), ElementsAre(2, 5, 6));
  EXPECT_EQ(checkpoints.best(), 2);
  EXPECT_EQ(checkpoints.latest(), 6);
  save(checkpoints, 7, true);
  EXPECT_THAT(checkpoints.steps(), ElementsAre(6, 7));
}

TEST_F(CheckpointStoreTest, ASecondSaveOfAStepReplacesTheFirst) {
  const CheckpointStore checkpoints = store();
  save(checkpoints, 5);
  checkpoints.save(5, CheckpointSample(77).content());
  EXPECT_EQ(first_value(checkpoints.load(5).model), 77.0F);
  EXPECT_THAT(checkpoints.steps(), ElementsAre(5));
}

TEST_F(CheckpointStoreTest, AStepThatIsNotThereIsNamedWithThoseThatAre) {
  const CheckpointStore checkpoints = store();
  save(checkpoints, 5);
  save(checkpoints, 9);
  try {
    checkpoints.load(7);
    FAIL() << "no error";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("step 7"), HasSubstr("5, 9")));
  }
}

TEST_F(CheckpointStoreTest, OtherFoldersAreLeftAlone) {
  const CheckpointStore checkpoints = store(1);
  for (const char* name : {"step-5", "step-00000001.bak", "mine"}) {
    std::filesystem::create_directories(folder_.path() / "checkpoints" / name);
  }
  save(checkpoints, 5);
  save(checkpoints, 9);
  EXPECT_THAT(checkpoints.steps(), ElementsAre(9));
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / "checkpoints/step-00000001.bak"));
}

TEST_F(CheckpointStoreTest, DiscardAfterRemovesTheAbandonedFuture) {
  const CheckpointStore checkpoints = store();
  for (const int64_t step : {1, 2, 3}) save(checkpoints, step);
  checkpoints.discard_after(1);
  EXPECT_THAT(checkpoints.steps(), ElementsAre(1));
}

TEST_F(CheckpointStoreTest, LeftoversOfAKilledProcessGoWhenTheOwnerOpensTheStore) {
  const auto leftover = folder_.path() / "checkpoints/.tmp-step-00000003-17";
  std::filesystem::create_directories(leftover);
  put_bytes(leftover / "model.safetensors", "half");
  const CheckpointStore reader(folder_ / "checkpoints", StoreAccess::kRead);
  EXPECT_TRUE(std::filesystem::exists(leftover));
  store();
  EXPECT_FALSE(std::filesystem::exists(leftover));
}

TEST_F(CheckpointStoreTest, ATruncatedFileIsNamedAndThePreviousCheckpointOffered) {
  const CheckpointStore checkpoints = store();
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    for (const int64_t step : {100, 200}) save(checkpoints, step);
    const auto path = checkpoints.path_of(200) / name;
    const std::string whole = bytes_of(path);
    for (const size_t size : {size_t{0}, size_t{5}, whole.size() / 2, whole.size() - 1}) {
      if (std::string(name) == "state.json" && size == whole.size() - 1) continue;  // its newline
      put_bytes(path, whole.substr(0, size));
      EXPECT_THAT(damage_report(checkpoints, 200),
                  AllOf(HasSubstr("step-00000200"), HasSubstr(name),
                        HasSubstr("good are those of step 100:")));
      const GoodCheckpoint good = checkpoints.latest_good();
      EXPECT_EQ(good.step, 100);
      ASSERT_EQ(good.skipped.size(), 1U);
      EXPECT_EQ(good.skipped[0].step, 200);
      EXPECT_THAT(good.skipped[0].reason, HasSubstr(name));
    }
    std::filesystem::remove(path);
    EXPECT_THAT(damage_report(checkpoints, 200), HasSubstr(name));
    EXPECT_EQ(checkpoints.latest_good().step, 100);
  }
}

TEST_F(CheckpointStoreTest, EveryFlippedBitIsFoundOrMeansNothing) {
  const CheckpointStore checkpoints = store();
  for (const int64_t step : {100, 200}) save(checkpoints, step);
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    const auto path = checkpoints.path_of(200) / name;
    const std::string whole = bytes_of(path);
    for (size_t bit = 0; bit < whole.size() * 8; bit += 7) {
      std::string damaged = whole;
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
      put_bytes(path, damaged);
      ASSERT_EQ(checkpoints.latest_good().step, 100) << name << ", bit " << bit;
    }
    put_bytes(path, whole);
  }
  EXPECT_EQ(checkpoints.latest_good().step, 200);
}

TEST_F(CheckpointStoreTest, WithNoGoodCheckpointTheErrorSaysSo) {
  const CheckpointStore checkpoints = store();
  save(checkpoints, 100);
  put_bytes(checkpoints.path_of(100) / "model.safetensors", "x");
  EXPECT_THAT(damage_report(checkpoints, 100), HasSubstr("no other one is good"));
  EXPECT_EQ(checkpoints.latest_good().step, std::nullopt);
}

TEST_F(CheckpointStoreTest, ADamagedBestOneIsNamedAndTheNewestGoodOneTaken) {
  const CheckpointStore checkpoints = store();
  save(checkpoints, 100, true);
  save(checkpoints, 200);
  save(checkpoints, 300);
  EXPECT_EQ(checkpoints.best_good().step, 100);
  EXPECT_TRUE(checkpoints.best_good().skipped.empty());
  put_bytes(checkpoints.path_of(100) / "optimizer.safetensors", "x");  // a model needs none
  EXPECT_EQ(checkpoints.best_good().step, 100);
  put_bytes(checkpoints.path_of(100) / "model.safetensors", "x");
  const GoodCheckpoint good = checkpoints.best_good();
  EXPECT_EQ(good.step, 300);
  ASSERT_EQ(good.skipped.size(), 1U);
  EXPECT_EQ(good.skipped[0].step, 100);
  EXPECT_THAT(good.skipped[0].reason, HasSubstr("model.safetensors"));
  EXPECT_THAT(checkpoints.good_steps(), ElementsAre(200, 300));
}

TEST_F(CheckpointStoreTest, OneThatMayHaveBeenTheBestIsNamed) {
  const CheckpointStore checkpoints = store();
  save(checkpoints, 100, true);
  save(checkpoints, 200, true);
  put_bytes(checkpoints.path_of(200) / "state.json", "");
  const GoodCheckpoint good = checkpoints.best_good();
  EXPECT_EQ(good.step, 100);
  ASSERT_EQ(good.skipped.size(), 1U);
  EXPECT_EQ(good.skipped[0].step, 200);
}

TEST_F(CheckpointStoreTest, ADamagedCheckpointCanBeWrittenAgain) {
  const CheckpointStore checkpoints = store();
  save(checkpoints, 100);
  put_bytes(checkpoints.path_of(100) / "state.json", "");
  save(checkpoints, 100);
  EXPECT_EQ(checkpoints.latest_good().step, 100);
}

TEST_F(CheckpointStoreTest, ARenamedCheckpointIsNotTakenForAnotherStep) {
  const CheckpointStore checkpoints = store();
  save(checkpoints, 100);
  std::filesystem::rename(checkpoints.path_of(100), checkpoints.path_of(300));
  EXPECT_EQ(checkpoints.latest_good().step, std::nullopt);
  EXPECT_THAT(damage_report(checkpoints, 300), HasSubstr("step 100"));
}

}  // namespace
}  // namespace fmmformer::train
