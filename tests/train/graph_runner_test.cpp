// SPDX-License-Identifier: Apache-2.0
// Training from a CUDA graph: the bits of training without one.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/temporary_folder.h"
#include "train/model_files.h"
#include "train/run_comparison.h"
#include "train/small_experiment.h"
#include "train/trainer.h"
#include "train/training_step.h"

namespace fmmformer::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Overrides = std::vector<std::string>;

struct Crash : std::exception {};

class CudaGraphRun : public testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  }

  std::filesystem::path run(const std::string& name) const { return folder_.path() / name; }

  RunOutcome train(const std::string& name, const Overrides& overrides) {
    return start_run(small_experiment(overrides), run(name), {.device = at::kCUDA}, watcher_);
  }

  std::string how(const std::string& name) const {
    const auto record = nlohmann::ordered_json::parse(bytes_of(run(name) / "record.json"));
    return record.at("result").at("steps_run");
  }

  void expect_same_run(const std::string& a, const std::string& b) const {
    expect_same_weights(run(a), run(b));
    EXPECT_EQ(metrics_of(run(a)), metrics_of(run(b)));
  }

  TemporaryFolder folder_;
  Watcher watcher_;
};

TEST_F(CudaGraphRun, GivesTheBitsOfARunWithoutOne) {
  const Overrides fp32 = {}, bf16 = {"train.precision=bf16"},
                  parts = {"train.accumulate=2", "optimizer.clip_global=0.5"},
                  softmax = {"model.attention.kind=softmax", "train.precision=bf16"},
                  cycle = {"schedule.kind=one_cycle", "schedule.warmup=10", "train.precision=bf16"};
  int number = 0;
  for (Overrides overrides : {fp32, bf16, parts, softmax, cycle}) {
    const std::string name = std::to_string(number++);
    train("graph" + name, overrides);
    overrides.emplace_back("train.cuda_graph=false");
    train("eager" + name, overrides);
    expect_same_run("graph" + name, "eager" + name);
    EXPECT_EQ(how("graph" + name), "cuda graph");
    EXPECT_EQ(how("eager" + name), "eager");
  }
  EXPECT_THAT(watcher_.notes, IsEmpty());
}

TEST_F(CudaGraphRun, CutAndResumedItEndsWithTheBitsOfAStraightOne) {
  const Overrides overrides = {"train.precision=bf16"};
  train("straight", overrides);
  watcher_.step_of_action = 24;
  watcher_.at_step = [] { throw Crash(); };
  EXPECT_THROW(train("cut", overrides), Crash);
  watcher_.step_of_action = -1;
  EXPECT_EQ(resume_run(run("cut"), {}, {.device = at::kCUDA}, watcher_).status,
            RunStatus::kFinished);
  expect_same_run("straight", "cut");
}

TEST_F(CudaGraphRun, GoesOnWithoutTheGraphWhenAsked) {
  train("straight", {});
  train("changed", {"train.steps=25"});
  resume_run(run("changed"), {"train.steps=40", "train.cuda_graph=false"}, {.device = at::kCUDA},
             watcher_);
  expect_same_weights(run("straight"), run("changed"));
  EXPECT_EQ(how("changed"), "eager");
}

const Overrides kAdaptiveSoftmax = {"model.output=adaptive_softmax", "model.cutoffs=[2]",
                                    "model.positions=learned"};

TEST_F(CudaGraphRun, AnAdaptiveSoftmaxHasTheSameBitsWithAndWithoutGraphsHoweverManyThereAre) {
  // Batches large enough that the clusters of different ones get different rows.
  Overrides overrides = kAdaptiveSoftmax;
  overrides.insert(overrides.end(), {"train.precision=bf16", "train.batch_size=64"});
  train("graph", overrides);
  overrides.emplace_back("train.cuda_graph=false");
  train("eager", overrides);
  expect_same_run("graph", "eager");
  EXPECT_EQ(how("graph"), "cuda graph");
  EXPECT_THAT(watcher_.notes, IsEmpty());
}

/// Steps given by hand.
class Steps {
 public:
  explicit Steps(bool cuda_graph, const Overrides& overrides = {}) {
    const ExperimentConfig experiment = small_experiment(overrides);
    task_ = tasks::make_task(experiment.task, 1);
    model_ = make_model(experiment.model, 1);
    place_model(*model_, at::kCUDA, Precision::kBf16);
    optimizer_.emplace(parameters_of(*model_), experiment.optimizer);
    runner_ = make_runner(training_work({*model_, *optimizer_, clock_}),
                          {.device = at::kCUDA,
                           .cuda_graph = cuda_graph,
                           .noticed = [this](const std::string& what) { notes.push_back(what); }});
  }

  /// The step's loss.
  float run(int64_t batch, int64_t size, int64_t seed, double learning_rate) {
    const StepBatches batches = {task_->batch({.index = batch, .size = size})};
    const StepNumbers numbers{.dropout_seeds = {seed},
                              .counted = static_cast<float>(batches[0].counted()),
                              .update = optimizer_->count_step(learning_rate, 0.9)};
    return runner_->run(batches, numbers)[0].item<float>();
  }

  std::vector<std::string> notes;

 private:
  std::unique_ptr<tasks::Task> task_;
  std::shared_ptr<Model> model_;
  std::optional<Optimizer> optimizer_;
  StepClock clock_;
  std::unique_ptr<WorkStream> stream_ = make_work_stream(at::kCUDA);
  std::unique_ptr<BatchRunner> runner_;
};

TEST_F(CudaGraphRun, EveryReplayDrawsTheMasksOfItsSeed) {
  for (const std::string kind : {"fmm", "softmax"}) {
    Steps steps(/*cuda_graph=*/true, {"model.attention.kind=" + kind});
    std::vector<float> losses;
    for (int64_t i = 0; i < 16; ++i) losses.push_back(steps.run(0, 4, /*seed=*/i % 4, 0));
    for (size_t i = 4; i < losses.size(); ++i) EXPECT_EQ(losses[i], losses[i % 4]) << kind;
    EXPECT_NE(losses[0], losses[1]) << kind;
    EXPECT_NE(losses[1], losses[2]) << kind;
  }
}

TEST_F(CudaGraphRun, ACaptureThatFailsIsToldOfAndTrainingGoesOnWithoutIt) {
  // A runner that is not told of clusters: their sizes make the host wait.
  const auto losses = [](Steps&& steps, const auto& check_notes) {
    std::vector<float> all;
    for (int64_t i = 0; i < 10; ++i) all.push_back(steps.run(i, 4, i, 1e-2));
    EXPECT_THAT(steps.notes, check_notes);
    return all;
  };
  const auto tried = losses(Steps(/*cuda_graph=*/true, kAdaptiveSoftmax),
                            ElementsAre(HasSubstr("without a CUDA graph")));
  EXPECT_EQ(tried, losses(Steps(/*cuda_graph=*/false, kAdaptiveSoftmax), IsEmpty()));
}

TEST_F(CudaGraphRun, ABatchOfAnotherShapeIsTrainedOnWithoutTheGraph) {
  const auto losses = [](Steps&& steps, const auto& check_notes) {
    std::vector<float> all;
    for (int64_t i = 0; i < 20; ++i) {
      all.push_back(steps.run(/*batch=*/i, /*size=*/i % 5 == 4 ? 3 : 4, /*seed=*/i, 1e-2));
    }
    EXPECT_THAT(steps.notes, check_notes);
    return all;
  };
  const auto with = losses(Steps(/*cuda_graph=*/true), ElementsAre(HasSubstr("[3, 16]")));
  EXPECT_EQ(with, losses(Steps(/*cuda_graph=*/false), IsEmpty()));
}

}  // namespace
}  // namespace fmmformer::train
