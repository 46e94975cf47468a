// SPDX-License-Identifier: Apache-2.0
#include "train/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <stdexcept>

#include "core/temporary_folder.h"

namespace fmmformer::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::invalid_argument& error) {
    return std::string("wrong use: ") + error.what();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

/// A process that holds a run folder until it is killed.
class Holder {
 public:
  explicit Holder(const std::filesystem::path& path) {
    int ready[2];
    if (pipe(ready) != 0) throw std::runtime_error("no pipe");
    process_ = fork();
    if (process_ == 0) {
      const RunFolder held = RunFolder::create(path);
      held.write_config("seed = 1\n");
      [[maybe_unused]] const ssize_t written = write(ready[1], "x", 1);
      while (true) pause();
    }
    char byte;
    if (read(ready[0], &byte, 1) != 1) throw std::runtime_error("the holder failed");
    close(ready[0]);
    close(ready[1]);
  }
  ~Holder() { kill_now(); }
  pid_t process() const { return process_; }
  void kill_now() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
    process_ = 0;
  }

 private:
  pid_t process_ = 0;
};

TEST(RunFolder, IsCreatedWithTheFoldersAboveIt) {
  const TemporaryFolder folder;
  const RunFolder run = RunFolder::create(folder / "a/b");
  run.write_config("seed = 3\n");
  run.write_record({{"loss", 0.5}});
  EXPECT_EQ(run.read_config(), "seed = 3\n");
  EXPECT_EQ(run.read_record()["loss"], 0.5);
  EXPECT_EQ(run.metrics(), folder / "a/b/metrics.jsonl");
}

TEST(RunFolder, HasAnEmptyRecordAtFirst) {
  const TemporaryFolder folder;
  EXPECT_TRUE(RunFolder::create(folder / "run").read_record().empty());
}

TEST(RunFolder, AnExistingRunIsNotOverwritten) {
  const TemporaryFolder folder;
  RunFolder::create(folder / "run").write_config("seed = 3\n");
  EXPECT_THAT(error_of([&] { RunFolder::create(folder / "run"); }),
              AllOf(StartsWith("wrong use"), HasSubstr("holds a run already"),
                    HasSubstr("--resume"), HasSubstr("--out")));
  EXPECT_EQ(RunFolder::resume(folder / "run").read_config(), "seed = 3\n");
}

TEST(RunFolder, AFolderThatHoldsNoRunYetMayBeUsed) {
  const TemporaryFolder folder;
  { const RunFolder killed_at_once = RunFolder::create(folder / "run"); }
  EXPECT_NO_THROW(RunFolder::create(folder / "run"));
}

TEST(RunFolder, ThereMustBeARunToResume) {
  const TemporaryFolder folder;
  EXPECT_THAT(
      error_of([&] { RunFolder::resume(folder / "none"); }),
      AllOf(StartsWith("wrong use"), HasSubstr("no run folder"), HasSubstr("without --resume")));
  EXPECT_THAT(error_of([&] { RunFolder::resume(folder.path()); }),
              AllOf(HasSubstr("config.toml"), HasSubstr("without --resume")));
  EXPECT_FALSE(std::filesystem::exists(folder / "lock"));
}

TEST(RunFolder, IsReadWithoutItsLockWhileAnotherProcessWrites) {
  const TemporaryFolder folder;
  const Holder holder(folder / "run");
  EXPECT_EQ(RunPaths(folder / "run").read_config(), "seed = 1\n");
  EXPECT_TRUE(RunPaths(folder / "run").read_record().empty());
  EXPECT_THAT(error_of([&] { RunPaths(folder / "none").read_config(); }),
              AllOf(StartsWith("wrong use"), HasSubstr("config.toml")));
}

TEST(RunFolder, AFileInTheWayIsNamed) {
  const TemporaryFolder folder;
  std::ofstream(folder / "run") << "x";
  EXPECT_THAT(error_of([&] { RunFolder::create(folder / "run"); }),
              AllOf(HasSubstr((folder / "run").string()), HasSubstr("in the way")));
}

TEST(RunFolder, ASecondProcessIsToldWhoHoldsIt) {
  const TemporaryFolder folder;
  const Holder holder(folder / "run");
  const std::string owner = "in use by process " + std::to_string(holder.process());
  EXPECT_THAT(error_of([&] { RunFolder::create(folder / "run"); }), HasSubstr(owner));
  EXPECT_THAT(error_of([&] { RunFolder::resume(folder / "run"); }), HasSubstr(owner));
}

TEST(RunFolder, TheLockOfAKilledProcessIsNoObstacle) {
  const TemporaryFolder folder;
  Holder holder(folder / "run");
  holder.kill_now();
  EXPECT_EQ(RunFolder::resume(folder / "run").read_config(), "seed = 1\n");
}

TEST(RunFolder, TheLockEndsWithTheObject) {
  const TemporaryFolder folder;
  RunFolder::create(folder / "run").write_config("");
  EXPECT_NO_THROW(RunFolder::resume(folder / "run"));
  const RunFolder moved = [&] { return RunFolder::resume(folder / "run"); }();
  EXPECT_THAT(error_of([&] { RunFolder::resume(folder / "run"); }),
              HasSubstr(std::to_string(getpid())));
}

TEST(RunFolder, ADamagedRecordIsNamed) {
  const TemporaryFolder folder;
  const RunFolder run = RunFolder::create(folder / "run");
  std::ofstream(run.record()) << "{\"loss\":";
  EXPECT_THAT(error_of([&] { run.read_record(); }), HasSubstr("record.json"));
}

}  // namespace
}  // namespace fmmformer::train
