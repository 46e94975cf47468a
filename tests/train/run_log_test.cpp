// SPDX-License-Identifier: Apache-2.0
#include "train/run_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>

#include "core/temporary_folder.h"

namespace fmmformer::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int64_t> steps_in(const std::filesystem::path& path) {
  std::vector<int64_t> steps;
  for (const auto& line : read_run_log(path)) steps.push_back(line["step"]);
  return steps;
}

class RunLogTest : public testing::Test {
 protected:
  void write_steps(int64_t first, int64_t last) {
    RunLog log(path_);
    for (int64_t step = first; step <= last; ++step) log.append({{"step", step}, {"loss", 0.5}});
  }
  void append_raw(const std::string& text) { std::ofstream(path_, std::ios::app) << text; }

  const TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_ / "metrics.jsonl";
};

TEST_F(RunLogTest, WhatIsAppendedIsReadBack) {
  RunLog log(path_);
  log.append({{"step", 1}, {"loss", 0.25}, {"kind", "train"}});
  log.append({{"step", 2}, {"loss", std::numeric_limits<double>::quiet_NaN()}});
  const auto lines = read_run_log(path_);  // while it is open: every line is on its way at once
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].dump(), R"({"step":1,"loss":0.25,"kind":"train"})");
  EXPECT_TRUE(lines[1]["loss"].is_null());
}

TEST_F(RunLogTest, OpeningAgainGoesOn) {
  write_steps(1, 2);
  write_steps(3, 4);
  EXPECT_THAT(steps_in(path_), ElementsAre(1, 2, 3, 4));
}

TEST_F(RunLogTest, ResumingCutsBackToTheCheckpoint) {
  write_steps(1, 5);
  append_raw(R"({"step":6,"lo)");
  RunLog log(path_, 3);
  EXPECT_THAT(steps_in(path_), ElementsAre(1, 2, 3));
  log.append({{"step", 4}});
  EXPECT_THAT(steps_in(path_), ElementsAre(1, 2, 3, 4));
}

TEST_F(RunLogTest, ResumingRemovesATornLineOfAnEarlierStep) {
  write_steps(1, 2);
  append_raw(R"({"step":3,"loss":0.)");
  RunLog log(path_, 10);
  log.append({{"step", 11}});
  EXPECT_THAT(steps_in(path_), ElementsAre(1, 2, 11));
}

TEST_F(RunLogTest, ResumingRemovesZerosThatAPowerCutLeft) {
  write_steps(1, 2);
  append_raw(std::string(100, '\0') + "\n");
  write_steps(3, 3);
  EXPECT_THROW(read_run_log(path_), std::runtime_error);
  const RunLog log(path_, 10);
  EXPECT_THAT(steps_in(path_), ElementsAre(1, 2, 3));
}

TEST_F(RunLogTest, ResumingWithoutALogBeginsOne) {
  RunLog log(path_, 3);
  log.append({{"step", 4}});
  EXPECT_THAT(steps_in(path_), ElementsAre(4));
}

TEST_F(RunLogTest, ReadingPassesOverATornLastLine) {
  write_steps(1, 2);
  append_raw(R"({"step":3})");  // complete but for its end: the next append would run into it
  EXPECT_THAT(steps_in(path_), ElementsAre(1, 2));
}

TEST_F(RunLogTest, ALineThatIsWrongIsNamed) {
  write_steps(1, 2);
  append_raw("nonsense\n");
  try {
    read_run_log(path_);
    FAIL() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("line 3"));
  }
}

TEST_F(RunLogTest, ALineWithoutAStepIsRefused) {
  RunLog log(path_);
  EXPECT_THROW(log.append({{"loss", 1}}), std::invalid_argument);
  EXPECT_THROW(log.append({{"step", 1.5}}), std::invalid_argument);
}

TEST_F(RunLogTest, NoFileIsNoLines) { EXPECT_TRUE(read_run_log(path_).empty()); }

}  // namespace
}  // namespace fmmformer::train
