// SPDX-License-Identifier: Apache-2.0
// Full and read-only disks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "train/checkpoint_sample.h"
#include "train/checkpoint_store.h"
#include "train/event_file.h"
#include "train/run_folder.h"
#include "train/run_log.h"
#include "train/small_disk.h"

namespace fmmformer::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class DiskFaults : public testing::Test {
 protected:
  void SetUp() override {
    if (!disk_.problem().empty()) GTEST_SKIP() << disk_.problem();
  }
  std::string error_of(const std::function<void()>& action) const {
    try {
      action();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "no error";
  }
  /// Leaves no free byte.
  void fill() const {
    std::ofstream stream(disk_ / "filler", std::ios::binary);
    while (stream << std::string(512, 'x') << std::flush) {
    }
  }

  const SmallDisk disk_{256};
};

TEST_F(DiskFaults, ACheckpointThatDoesNotFitLeavesTheOnesBefore) {
  const CheckpointStore store(disk_ / "checkpoints", StoreAccess::kWrite, 3);
  store.save(1, CheckpointSample(1, 4000).content());
  EXPECT_THAT(error_of([&] { store.save(2, CheckpointSample(2, 40'000).content()); }),
              AllOf(HasSubstr("cannot write"), HasSubstr("No space left"), HasSubstr("free some")));
  EXPECT_EQ(store.latest_good().step, 1);
  EXPECT_THAT(store.steps(), ElementsAre(1));
  // Nothing half written stays: there is room again.
  store.save(3, CheckpointSample(3, 4000).content());
  EXPECT_EQ(store.latest_good().step, 3);
}

TEST_F(DiskFaults, AFullDiskIsNamedByEveryWriter) {
  const RunFolder folder = RunFolder::create(disk_ / "run");
  RunLog log(folder.metrics());
  log.append({{"step", 1}});
  EventFile events(folder.events());
  fill();
  const auto says_full = AllOf(HasSubstr("No space left"), HasSubstr("free some space"));
  EXPECT_THAT(error_of([&] { folder.write_config(std::string(10'000, 'x')); }), says_full);
  EXPECT_THAT(error_of([&] { folder.write_record({{"a", std::string(10'000, 'x')}}); }), says_full);
  EXPECT_THAT(error_of([&] {
                log.append({{"step", 2}, {"a", std::string(10'000, 'x')}});
              }),
              AllOf(says_full, HasSubstr("metrics.jsonl")));
  EXPECT_THAT(error_of([&] { events.scalar(std::string(10'000, 'x'), 1, 1); }), says_full);
  EXPECT_THAT(error_of([&] { RunFolder::create(disk_ / "other"); }), says_full);
}

TEST_F(DiskFaults, ALineThatDoesNotFitLeavesNoPartOfItself) {
  RunLog log(disk_ / "metrics.jsonl");
  log.append({{"step", 1}});
  fill();
  EXPECT_NE(error_of([&] {
              log.append({{"step", 2}, {"a", std::string(10'000, 'x')}});
            }),
            "no error");
  std::filesystem::remove(disk_ / "filler");
  log.append({{"step", 3}});
  const auto lines = read_run_log(disk_ / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[1]["step"], 3);
}

TEST_F(DiskFaults, AReadOnlyFolderIsNamed) {
  RunFolder::create(disk_ / "run").write_config("seed = 1\n");
  CheckpointStore(disk_ / "run/checkpoints", StoreAccess::kWrite)
      .save(5, CheckpointSample(5).content());
  if (!disk_.make_read_only()) GTEST_SKIP() << "cannot make a disk read-only here";
  const auto says_read_only =
      AllOf(HasSubstr("Read-only file system"), HasSubstr("a folder that you may write to"));
  EXPECT_THAT(error_of([&] { RunFolder::create(disk_ / "new"); }), says_read_only);
  EXPECT_THAT(error_of([&] { RunFolder::resume(disk_ / "run"); }), says_read_only);
  EXPECT_THAT(error_of([&] { RunLog log(disk_ / "run/metrics.jsonl"); }), says_read_only);
  EXPECT_THAT(error_of([&] { EventFile events(disk_ / "run/events"); }), says_read_only);
  const CheckpointStore writer(disk_ / "run/checkpoints", StoreAccess::kWrite);
  EXPECT_THAT(error_of([&] { writer.save(6, CheckpointSample(6).content()); }), says_read_only);
  // Reading is another matter.
  EXPECT_EQ(CheckpointStore(disk_ / "run/checkpoints", StoreAccess::kRead).latest_good().step, 5);
}

}  // namespace
}  // namespace fmmformer::train
