// SPDX-License-Identifier: Apache-2.0
// A process that writes checkpoints is killed at random moments, again and again.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>

#include "core/temporary_folder.h"
#include "train/checkpoint_sample.h"
#include "train/checkpoint_store.h"
#include "train/run_folder.h"
#include "train/run_log.h"

namespace fmmformer::train {
namespace {

constexpr size_t kElements = 20'000;  // 80 kB a file: a kill often comes in the midst of one

/// What a run does: goes on from the last good checkpoint, until it is killed.
[[noreturn]] void write_until_killed(const std::filesystem::path& path) {
  const RunFolder folder = std::filesystem::exists(path / "config.toml") ? RunFolder::resume(path)
                                                                         : RunFolder::create(path);
  folder.write_config("seed = 1\n");
  const CheckpointStore store(folder.checkpoints(), StoreAccess::kWrite, 2);
  int64_t step = store.latest_good().step.value_or(0);
  RunLog log(folder.metrics(), step);
  while (true) {
    ++step;
    log.append({{"step", step}});
    store.save(step, CheckpointSample(step, kElements, step % 5 == 0).content());
  }
}

pid_t start_writer(const std::filesystem::path& path) {
  const pid_t child = fork();
  if (child != 0) return child;
  try {
    write_until_killed(path);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "writer: %s\n", error.what());
  }
  _exit(1);
}

void kill_writer(pid_t child, std::chrono::microseconds after) {
  usleep(static_cast<useconds_t>(after.count()));
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself, with an error";
}

/// How long one checkpoint takes on this disk: kills come within a few of them.
std::chrono::microseconds time_of_a_save() {
  const TemporaryFolder folder;
  const CheckpointStore store(folder.path(), StoreAccess::kWrite, 2);
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t step = 1; step <= 4; ++step) {
    store.save(step, CheckpointSample(step, kElements).content());
  }
  const auto taken = std::chrono::steady_clock::now() - begin;
  return std::chrono::duration_cast<std::chrono::microseconds>(taken) / 4;
}

TEST(CheckpointKill, AfterEveryKillTheLastGoodCheckpointIsThere) {
  const TemporaryFolder folder;
  const int kills = std::getenv("FMMFORMER_QUICK") != nullptr ? 15 : 60;
  const auto longest = static_cast<uint32_t>(4 * time_of_a_save().count());
  std::mt19937 random(1);
  int64_t last = 0;
  for (int i = 0; i < kills; ++i) {
    const pid_t child = start_writer(folder / "run");
    kill_writer(child, std::chrono::microseconds(1 + random() % longest));
    const CheckpointStore store(folder / "run/checkpoints", StoreAccess::kRead);
    const GoodCheckpoint good = store.latest_good();
    EXPECT_TRUE(good.skipped.empty()) << good.skipped.front().reason;
    ASSERT_TRUE(good.step.has_value() || last == 0);
    if (!good.step) continue;
    EXPECT_GE(*good.step, last);
    last = *good.step;
    const LoadedCheckpoint loaded = store.load(last);
    EXPECT_EQ(first_value(loaded.model), static_cast<float>(last));
    EXPECT_EQ(first_value(loaded.optimizer), static_cast<float>(last));
    EXPECT_GE(read_run_log(folder / "run/metrics.jsonl").size(), static_cast<size_t>(last));
    EXPECT_EQ(store.best(), last >= 5 ? std::optional(last - last % 5) : std::nullopt);
  }
  EXPECT_GT(last, kills / 10) << "the writers were killed before they could do anything";
  const CheckpointStore store(folder / "run/checkpoints", StoreAccess::kWrite, 2);
  for (const auto& entry : std::filesystem::directory_iterator(folder / "run/checkpoints")) {
    EXPECT_TRUE(entry.path().filename().string().starts_with("step-")) << entry.path();
  }
}

}  // namespace
}  // namespace fmmformer::train
