// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include "core/temporary_folder.h"
#include "train/checkpoint_store.h"
#include "train/model_files.h"
#include "train/run_comparison.h"
#include "train/run_folder.h"
#include "train/small_experiment.h"
#include "train/step_clock.h"
#include "train/tensor_file.h"

namespace fmmformer::train {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

struct Crash : std::exception {};

class Trainer : public testing::Test {
 protected:
  fs::path run(const std::string& name) const { return folder_.path() / name; }

  RunOutcome train(const std::string& name, const std::vector<std::string>& overrides = {}) {
    Watcher watcher;
    return start_run(small_experiment(overrides), run(name), {}, watcher);
  }

  TemporaryFolder folder_;
};

TEST_F(Trainer, LearnsAndLeavesARunFolderWithEverything) {
  const RunOutcome outcome = train("a");
  EXPECT_EQ(outcome.status, RunStatus::kFinished);
  EXPECT_EQ(outcome.step, 40);
  for (const auto* file : {"config.toml", "record.json", "metrics.jsonl", "events"})
    EXPECT_TRUE(fs::exists(run("a") / file)) << file;
  const auto record = nlohmann::ordered_json::parse(bytes_of(run("a") / "record.json"));
  EXPECT_EQ(record.at("status"), "finished");
  EXPECT_EQ(record.at("curves").at("valid").size(), 3);  // after 15, 30 and 40 steps
  EXPECT_EQ(record.at("maps").at("heads").size(), 4);    // 2 layers x 2 heads
  EXPECT_EQ(record.at("blend").size(), 2);
  const auto& train_curve = record.at("curves").at("train");
  EXPECT_LT(train_curve.back().at("loss"), train_curve.front().at("loss"));
}

TEST_F(Trainer, TheRecordSaysWhatAStepAndABatchToScoreCost) {
  train("a");
  const auto result = RunPaths(run("a")).read_record().at("result");
  EXPECT_GT(result.at("seconds_per_step").get<double>(), 0);
  EXPECT_GT(result.at("seconds_per_evaluation_batch").get<double>(), 0);
}

TEST(EvaluationClock, LeavesOutTheFirstEvaluation) {
  EvaluationClock clock;
  clock.add(std::chrono::seconds(9), 3);
  EXPECT_EQ(clock.batches(), 0);
  clock.add(std::chrono::seconds(2), 3);
  clock.add(std::chrono::seconds(4), 3);
  EXPECT_EQ(clock.seconds_per_batch(), 1.0);
}

TEST_F(Trainer, TheSameSeedGivesTheSameBits) {
  train("a");
  train("b");
  expect_same_weights(run("a"), run("b"));
  EXPECT_EQ(metrics_of(run("a")), metrics_of(run("b")));
}

TEST_F(Trainer, AnotherSeedGivesAnotherRun) {
  train("a");
  train("b", {"train.seed=2"});
  EXPECT_NE(metrics_of(run("a")), metrics_of(run("b")));
}

TEST_F(Trainer, TheNumberOfPrefetchThreadsDoesNotMatter) {
  for (const auto* threads : {"0", "1", "3"})
    train(threads, {std::string("train.prefetch_threads=") + threads});
  expect_same_weights(run("0"), run("1"));
  expect_same_weights(run("0"), run("3"));
  EXPECT_EQ(metrics_of(run("0")), metrics_of(run("3")));
}

TEST_F(Trainer, HowStepsAreLaunchedMayChangeWhenARunGoesOn) {
  train("straight");
  train("changed", {"train.steps=20"});
  Watcher watcher;
  const RunOutcome outcome =
      resume_run(run("changed"), {"train.steps=40", "train.cuda_graph=false"}, {}, watcher);
  EXPECT_EQ(outcome.status, RunStatus::kFinished);
  expect_same_weights(run("straight"), run("changed"));
}

TEST_F(Trainer, ACrashedRunResumedEndsWithTheBitsOfAStraightOne) {
  train("straight");
  // After 24 steps: past the checkpoint of step 20, with log lines that must be taken back.
  Watcher crashing;
  crashing.step_of_action = 24;
  crashing.at_step = [] { throw Crash(); };
  EXPECT_THROW(start_run(small_experiment(), run("cut"), {}, crashing), Crash);
  Watcher watcher;
  EXPECT_EQ(resume_run(run("cut"), {}, {}, watcher).status, RunStatus::kFinished);
  expect_same_weights(run("straight"), run("cut"));
  EXPECT_EQ(metrics_of(run("straight")), metrics_of(run("cut")));
}

TEST_F(Trainer, CtrlCFinishesTheStepSavesAndTheRunGoesOnBitForBit) {
  train("straight");
  Watcher interrupting;
  interrupting.step_of_action = 17;
  interrupting.at_step = [] { std::raise(SIGINT); };
  const RunOutcome outcome = start_run(small_experiment(), run("cut"), {}, interrupting);
  EXPECT_EQ(outcome.status, RunStatus::kInterrupted);
  EXPECT_EQ(outcome.step, 18);
  EXPECT_EQ(interrupting.saved_steps.back(), 18);
  Watcher watcher;
  resume_run(run("cut"), {}, {}, watcher);
  expect_same_weights(run("straight"), run("cut"));
  EXPECT_EQ(metrics_of(run("straight")), metrics_of(run("cut")));
}

TEST_F(Trainer, AnEndInTimeSavesAfterAStepAndTheRunGoesOnBitForBit) {
  train("straight");
  Watcher watcher;
  const TrainerOptions no_time{.stop_at = std::chrono::steady_clock::now()};
  const RunOutcome cut = start_run(small_experiment(), run("cut"), no_time, watcher);
  EXPECT_EQ(cut.status, RunStatus::kInterrupted);
  EXPECT_EQ(cut.signal, 0);
  EXPECT_EQ(cut.step, 1);
  EXPECT_EQ(resume_run(run("cut"), {}, no_time, watcher).step, 2);
  EXPECT_EQ(resume_run(run("cut"), {}, {}, watcher).status, RunStatus::kFinished);
  expect_same_weights(run("straight"), run("cut"));
}

TEST_F(Trainer, ARunThatGoesOnMayStillBeScoredOnTheTestSplit) {
  Watcher watcher;
  start_run(small_experiment(), run("a"), {.stop_at = std::chrono::steady_clock::now()}, watcher);
  resume_run(run("a"), {"train.test=true"}, {}, watcher);
  EXPECT_TRUE(RunPaths(run("a")).read_record().at("result").contains("test_metric"));
}

TEST_F(Trainer, AFinishedRunCanBeMadeLonger) {
  train("long");
  train("short", {"train.steps=20"});
  Watcher watcher;
  const RunOutcome outcome = resume_run(run("short"), {"train.steps=40"}, {}, watcher);
  EXPECT_EQ(outcome.step, 40);
  expect_same_weights(run("long"), run("short"));
}

TEST_F(Trainer, AnExtraEvaluationAtAnEndDoesNotMoveTheOnesAfterIt) {
  train("long");
  train("short", {"train.steps=20"});  // evaluated at 15 and, being the end, at 20
  Watcher watcher;
  resume_run(run("short"), {"train.steps=40"}, {}, watcher);
  const auto valid = [&](const std::string& name) {
    std::vector<std::string> lines;
    for (const std::string& line : metrics_of(run(name))) {
      if (line.find("valid") != std::string::npos && line.find("\"step\":20") == std::string::npos)
        lines.push_back(line);
    }
    return lines;
  };
  EXPECT_EQ(valid("long"), valid("short"));
}

TEST_F(Trainer, AFinishedRunIsLeftAsItIs) {
  train("a");
  const std::string record = bytes_of(run("a") / "record.json");
  Watcher watcher;
  EXPECT_EQ(resume_run(run("a"), {}, {}, watcher).step, 40);
  EXPECT_EQ(bytes_of(run("a") / "record.json"), record);
  EXPECT_THROW(resume_run(run("a"), {"train.steps=30"}, {}, watcher), ConfigError);
}

TEST_F(Trainer, WeightsFromElsewhereSurviveACrashBeforeTheFirstCheckpoint) {
  train("first");
  const TrainerOptions options{.init_from = run("first")};
  Watcher watcher;
  start_run(small_experiment(), run("straight"), options, watcher);
  Watcher crashing;
  crashing.step_of_action = 2;
  crashing.at_step = [] { throw Crash(); };
  EXPECT_THROW(start_run(small_experiment(), run("cut"), options, crashing), Crash);
  resume_run(run("cut"), {}, {}, watcher);
  expect_same_weights(run("straight"), run("cut"));
}

TEST_F(Trainer, AStartThatFailedLeavesAFolderThatCanBeUsed) {
  Watcher watcher;
  EXPECT_ANY_THROW(start_run(small_experiment(), run("a"), {.init_from = run("nothing")}, watcher));
  EXPECT_EQ(train("a", {"train.steps=1"}).status, RunStatus::kFinished);
}

TEST_F(Trainer, ARunWithoutAWholeCheckpointIsNotBegunAnew) {
  train("a", {"train.steps=10"});
  const CheckpointStore store(run("a") / "checkpoints", StoreAccess::kRead);
  for (const int64_t step : store.steps()) fs::resize_file(store.path_of(step) / "state.json", 5);
  const std::vector<std::string> metrics = metrics_of(run("a"));
  Watcher watcher;
  EXPECT_THROW(resume_run(run("a"), {"train.steps=20"}, {}, watcher), std::runtime_error);
  EXPECT_EQ(metrics_of(run("a")), metrics);
}

TEST_F(Trainer, ResumingKeepsTheConfig) {
  train("a", {"train.steps=10"});
  Watcher watcher;
  try {
    resume_run(run("a"), {"model.dim=32"}, {}, watcher);
    FAIL() << "was resumed";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("model.dim"), HasSubstr("--init-from")));
  }
}

TEST_F(Trainer, AnOverrideThatChangesNothingIsNoObstacle) {
  train("a", {"train.steps=10", "train.batch_size=2"});
  Watcher watcher;
  EXPECT_EQ(resume_run(run("a"), {"train.batch_size=2", "train.steps=11"}, {}, watcher).step, 11);
  EXPECT_THAT(watcher.notes, testing::IsEmpty());
}

TEST_F(Trainer, ARunOfAnotherConfigIsToldApart) {
  train("a", {"train.steps=10"});
  EXPECT_NO_THROW(check_run_is_of(small_experiment({"train.steps=99"}), run("a")));
  EXPECT_NO_THROW(check_run_is_of(small_experiment(), run("nothing")));
  try {
    check_run_is_of(small_experiment({"model.attention.bandwidth=7"}), run("a"));
    FAIL() << "was taken for a run of another band";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("model.attention.bandwidth is 3 there and 7"), HasSubstr("--out")));
  }
}

TEST_F(Trainer, AScheduleThatIsStretchedIsNoted) {
  train("a", {"train.steps=4", "schedule.kind=cosine"});
  Watcher watcher;
  resume_run(run("a"), {"train.steps=6"}, {}, watcher);
  EXPECT_THAT(watcher.notes, testing::ElementsAre(HasSubstr("cosine schedule spans the run")));
}

TEST_F(Trainer, ADamagedCheckpointIsNamedAndTheOneBeforeIsUsed) {
  train("straight");
  train("cut", {"train.steps=20"});
  const CheckpointStore store(run("cut") / "checkpoints", StoreAccess::kRead);
  fs::resize_file(store.path_of(20) / "model.safetensors", 100);
  Watcher watcher;
  resume_run(run("cut"), {"train.steps=40"}, {}, watcher);
  ASSERT_FALSE(watcher.notes.empty());
  EXPECT_THAT(watcher.notes.front(), AllOf(HasSubstr("step 20"), HasSubstr("damaged")));
  expect_same_weights(run("straight"), run("cut"));
}

// At this rate the model is best after 30 of its 40 steps.
const std::vector<std::string> kTooFast = {"schedule.learning_rate=3"};

nlohmann::ordered_json record_of(const fs::path& run) {
  return nlohmann::ordered_json::parse(bytes_of(run / "record.json"));
}

TEST_F(Trainer, ThePicturesShowTheBestWeightsAndTheLastAreKept) {
  EXPECT_EQ(train("a", kTooFast).best_step, 30);
  const auto record = record_of(run("a"));
  EXPECT_EQ(record.at("pictures").at("step"), 30);
  EXPECT_EQ(record.at("pictures").at("weights"), "best");
  EXPECT_EQ(CheckpointStore(run("a") / "checkpoints", StoreAccess::kRead).latest(), 40);
  std::vector<std::string> until_best = kTooFast;
  until_best.emplace_back("train.steps=30");
  train("b", until_best);
  EXPECT_EQ(record.at("blend"), record_of(run("b")).at("blend"));
  EXPECT_EQ(record.at("maps"), record_of(run("b")).at("maps"));
}

TEST_F(Trainer, ABestCheckpointThatIsDamagedByTheEndDoesNotFailTheRun) {
  Watcher watcher;
  watcher.step_of_action = 35;
  watcher.at_step = [&] {
    const CheckpointStore store(run("a") / "checkpoints", StoreAccess::kRead);
    fs::resize_file(store.path_of(30) / "model.safetensors", 40);
  };
  const RunOutcome outcome = start_run(small_experiment(kTooFast), run("a"), {}, watcher);
  EXPECT_EQ(outcome.status, RunStatus::kFinished);
  ASSERT_FALSE(watcher.notes.empty());
  EXPECT_THAT(watcher.notes.back(), AllOf(HasSubstr("damaged"), HasSubstr("last weights")));
  EXPECT_EQ(record_of(run("a")).at("pictures").at("weights"), "last");
  EXPECT_EQ(record_of(run("a")).at("pictures").at("step"), 40);
}

TEST_F(Trainer, ALossThatIsNotFiniteStopsTheRunAndNamesStepAndTensor) {
  Watcher watcher;
  const RunOutcome outcome =
      start_run(small_experiment({"schedule.learning_rate=1e30", "optimizer.clip_tensor=0"}),
                run("a"), {}, watcher);
  EXPECT_EQ(outcome.status, RunStatus::kFailed);
  EXPECT_THAT(outcome.message, AllOf(HasSubstr("loss of step"), HasSubstr("not finite")));
  const auto record = nlohmann::ordered_json::parse(bytes_of(run("a") / "record.json"));
  EXPECT_EQ(record.at("status"), "failed");
  EXPECT_EQ(record.at("message"), outcome.message);
}

TEST_F(Trainer, PartsOfABatchGiveTheStepOfTheWholeBatch) {
  const std::vector<std::string> plain = {"model.dropout=0", "model.attention.dropout=0",
                                          "train.steps=5"};
  std::vector<std::string> parts = plain;
  parts.emplace_back("train.accumulate=4");
  train("whole", plain);
  train("parts", parts);
  const NamedTensors whole = last_weights(run("whole")), sum = last_weights(run("parts"));
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_TRUE(at::allclose(whole[i].second, sum[i].second, 1e-3, 1e-5)) << whole[i].first;
  }
}

TEST_F(Trainer, BeginsWithTheWeightsOfAnotherRun) {
  train("first");
  Watcher watcher;
  const ExperimentConfig still = small_experiment({"schedule.learning_rate=0", "train.steps=1"});
  start_run(still, run("second"), {.init_from = run("first")}, watcher);
  const CheckpointStore store(run("first") / "checkpoints", StoreAccess::kRead);
  const NamedTensors best = tensors_of(store.load(*store.best(), CheckpointParts::kModel).model);
  const NamedTensors begun = last_weights(run("second"));
  for (size_t i = 0; i < best.size(); ++i)
    EXPECT_TRUE(at::equal(best[i].second, begun[i].second)) << best[i].first;
}

TEST_F(Trainer, WeightsOfAnotherModelAreRefusedWithTheFirstTensorThatDiffers) {
  train("first", {"train.steps=1"});
  Watcher watcher;
  try {
    start_run(small_experiment({"model.dim=32"}), run("second"), {.init_from = run("first")},
              watcher);
    FAIL() << "was begun";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), AllOf(HasSubstr("["), HasSubstr("first")));
  }
}

TEST_F(Trainer, TrainsInBf16WithMasterWeights) {
  EXPECT_EQ(train("a", {"train.precision=bf16"}).status, RunStatus::kFinished);
  const CheckpointStore store(run("a") / "checkpoints", StoreAccess::kRead);
  const LoadedCheckpoint checkpoint = store.load(*store.latest());
  for (const auto& [name, tensor] : checkpoint.model.tensors) {
    const bool blend = name.find("blend") != std::string::npos;
    EXPECT_EQ(tensor.dtype, blend ? "F32" : "BF16") << name;
  }
  EXPECT_THAT(bytes_of(store.path_of(*store.latest()) / "optimizer.safetensors"),
              HasSubstr(".master"));
}

}  // namespace
}  // namespace fmmformer::train
