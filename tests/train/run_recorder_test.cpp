// SPDX-License-Identifier: Apache-2.0
#include "train/run_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/temporary_folder.h"
#include "train/small_experiment.h"

namespace fmmformer::train {
namespace {

using Json = nlohmann::ordered_json;
using tasks::Split;

class Recorder : public testing::Test {
 protected:
  RunDescription description(const std::vector<std::string>& overrides = {}) const {
    RunDescription run{.experiment = small_experiment(overrides)};
    run.identity.created = "2026-11-15T18:00:00Z";
    run.identity.command = "fmmformer train small.toml";
    run.identity.overrides = overrides;
    return run;
  }
  Json record_of(const RunDescription& run) const {
    const TemporaryFolder folder;
    const RunFolder held = RunFolder::create(folder.path());
    RunRecorder(held, run).write(RunStatus::kRunning);
    return held.read_record();
  }

  TemporaryFolder folder_;
  RunFolder held_ = RunFolder::create(folder_.path());
};

TEST_F(Recorder, AMeasurementGoesToLogAndCurveWithPercentagesRecordedAsShares) {
  RunRecorder recorder(held_, description());
  recorder.add({.step = 3, .split = Split::kTrain, .loss = 2, .metric = 25, .learning_rate = 0.1});
  recorder.add({.step = 3, .split = Split::kValid, .loss = 1.5, .metric = 40});
  recorder.write(RunStatus::kFinished);
  const Json record = held_.read_record();
  EXPECT_EQ(record.at("status"), "finished");
  EXPECT_EQ(record.at("curves").at("train"),
            Json::parse(R"([{"step":3,"loss":2.0,"metric":0.25}])"));
  EXPECT_EQ(record.at("curves").at("valid").at(0).at("metric"), 0.4);
  const auto lines = read_run_log(held_.metrics());
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].at("split"), "train");
  EXPECT_EQ(lines[0].at("accuracy"), 25);
  EXPECT_EQ(lines[0].at("learning_rate"), 0.1);
  EXPECT_FALSE(lines[1].contains("learning_rate"));
}

TEST_F(Recorder, TheRecordSaysWhichWayIsUp) {
  RunDescription run = description();
  EXPECT_TRUE(record_of(run).at("metric").at("higher_is_better"));
  EXPECT_TRUE(record_of(run).at("metric").at("is_share"));
  run.metric = kPerplexity;
  const Json record = record_of(run);
  EXPECT_EQ(record.at("metric").at("name"), "perplexity");
  EXPECT_FALSE(record.at("metric").at("higher_is_better"));
  EXPECT_FALSE(record.at("metric").at("is_share"));
}

TEST_F(Recorder, ANumberThatIsNotFiniteIsNull) {
  RunRecorder recorder(held_, description());
  recorder.add({.step = 1, .split = Split::kTrain, .loss = std::nan(""), .metric = INFINITY});
  recorder.write(RunStatus::kFailed, "the loss is not finite");
  const Json record = held_.read_record();
  EXPECT_TRUE(record.at("curves").at("train").at(0).at("loss").is_null());
  EXPECT_TRUE(record.at("curves").at("train").at(0).at("metric").is_null());
  EXPECT_EQ(record.at("message"), "the loss is not finite");
}

TEST_F(Recorder, AResumedRunKeepsItsBeginningAndForgetsWhatCameAfterTheCheckpoint) {
  {
    RunRecorder recorder(held_, description());
    for (const int64_t step : {3, 6, 9})
      recorder.add({.step = step, .split = Split::kTrain, .loss = 1});
    recorder.write(RunStatus::kInterrupted);
  }
  RunDescription later = description();
  later.identity.created = "2026-11-16T08:00:00Z";
  later.identity.command = "fmmformer train runs/small --resume";
  RunRecorder recorder(held_, later, /*resume_step=*/6);
  recorder.add({.step = 9, .split = Split::kTrain, .loss = 0.5});
  recorder.write(RunStatus::kRunning);
  const Json record = held_.read_record();
  EXPECT_EQ(record.at("created"), "2026-11-15T18:00:00Z");
  EXPECT_EQ(record.at("command"), "fmmformer train small.toml");
  const Json& curve = record.at("curves").at("train");
  ASSERT_EQ(curve.size(), 3U);
  EXPECT_EQ(curve.at(2).at("loss"), 0.5);
  EXPECT_EQ(read_run_log(held_.metrics()).size(), 3U);
}

TEST_F(Recorder, ARunMadeLongerIsToldByTheStepsItHasNow) {
  RunRecorder(held_, description({"train.log_every=3", "train.steps=7"}))
      .write(RunStatus::kFinished);
  const RunDescription longer = description({"train.log_every=3", "train.steps=9"});
  RunDescription later = longer;
  later.identity.overrides = {"train.steps=9"};
  RunRecorder(held_, later, /*resume_step=*/7).write(RunStatus::kRunning);
  const Json record = held_.read_record();
  EXPECT_EQ(record.at("overrides"), Json({"train.log_every=3", "train.steps=9"}));
  EXPECT_EQ(record.at("config"), record_of(longer).at("config"));
}

TEST_F(Recorder, AttentionIsNamedByWhatItHas) {
  const auto attention = [&](const std::vector<std::string>& overrides) {
    return record_of(description(overrides)).at("attention").get<std::string>();
  };
  EXPECT_EQ(attention({}), "fmm");
  EXPECT_EQ(attention({"model.attention.bandwidth=0"}), "linear");
  EXPECT_EQ(attention({"model.attention.feature_maps=[]"}), "band");
  EXPECT_EQ(attention({"model.attention.kind=softmax"}), "softmax");
}

}  // namespace
}  // namespace fmmformer::train
