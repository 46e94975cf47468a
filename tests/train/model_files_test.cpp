// SPDX-License-Identifier: Apache-2.0
#include "train/model_files.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "core/temporary_folder.h"
#include "train/checkpoint_store.h"
#include "train/run_folder.h"
#include "train/small_experiment.h"
#include "train/tensor_file.h"

namespace fmmformer::train {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

const c10::Device kCpu(c10::kCPU);

// A run whose checkpoint of step n was made of seed n; that of step 10 is the best.
class ModelFiles : public testing::Test {
 protected:
  ModelFiles() {
    RunFolder::create(run_).write_config(experiment_toml(small_experiment()));
    const CheckpointStore store(run_ / "checkpoints", StoreAccess::kWrite, 3);
    for (const int64_t step : {10, 20, 30}) {
      const TensorViews weights(parameters_of(*model_of_seed(step)));
      store.save(step, {.model = weights.views(), .optimizer = {}, .best = step == 10});
    }
  }

  static std::shared_ptr<Model> model_of_seed(int64_t seed) {
    return make_model(small_experiment().model, static_cast<uint64_t>(seed));
  }
  static void expect_seed(const Model& model, int64_t seed) {
    const NamedTensors wanted = parameters_of(*model_of_seed(seed)), got = parameters_of(model);
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(at::equal(got[i].second, wanted[i].second)) << got[i].first;
  }
  void damage(int64_t step) const {
    const CheckpointStore store(run_ / "checkpoints", StoreAccess::kRead);
    fs::resize_file(store.path_of(step) / "model.safetensors", 40);
  }
  std::string error_of(std::optional<int64_t> step) const {
    try {
      load_run(run_, step, kCpu);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "no error";
  }

  TemporaryFolder folder_;
  fs::path run_ = folder_ / "run";
};

TEST_F(ModelFiles, TheBestCheckpointIsTakenUnlessAStepIsNamed) {
  const TrainedModel best = load_run(run_, std::nullopt, kCpu);
  EXPECT_EQ(best.step, 10);
  EXPECT_EQ(best.note, "");
  expect_seed(*best.model, 10);
  expect_seed(*load_run(run_, 20, kCpu).model, 20);
}

TEST_F(ModelFiles, ADamagedBestCheckpointIsNamedAndTheNewestGoodOneUsed) {
  damage(10);
  const TrainedModel trained = load_run(run_, std::nullopt, kCpu);
  EXPECT_EQ(trained.step, 30);
  expect_seed(*trained.model, 30);
  EXPECT_THAT(trained.note, AllOf(HasSubstr("step 10 is damaged"), HasSubstr("step 30"),
                                  HasSubstr("good are: 20, 30")));
}

TEST_F(ModelFiles, ADamagedCheckpointThatWasNamedIsAnErrorThatOffersTheGoodOnes) {
  damage(20);
  EXPECT_THAT(error_of(20), AllOf(HasSubstr("damaged"), HasSubstr("10, 30")));
}

TEST_F(ModelFiles, ARunWithoutAGoodCheckpointIsAnErrorThatNamesEach) {
  for (const int64_t step : {10, 20, 30}) damage(step);
  EXPECT_THROW(load_run(run_, std::nullopt, kCpu), DamagedCheckpoint);
  EXPECT_THAT(error_of(std::nullopt), AllOf(HasSubstr("step 10"), HasSubstr("restore")));
}

TEST_F(ModelFiles, WhatIsNoRunOrHasNoCheckpointYetIsToldApart) {
  EXPECT_THROW(load_run(folder_ / "nothing", std::nullopt, kCpu), std::invalid_argument);
  fs::remove_all(run_ / "checkpoints");
  EXPECT_THAT(error_of(std::nullopt), HasSubstr("no checkpoint yet"));
  std::ofstream(run_ / "record.json") << R"({"name": "copy/x", "status": "finished"})";
  EXPECT_THAT(error_of(std::nullopt),
              AllOf(HasSubstr("a record without a model"), HasSubstr("fmmformer train copy/x")));
}

TEST_F(ModelFiles, WeightsComeFromARunOrFromAFile) {
  const auto model = model_of_seed(1);
  EXPECT_EQ(load_weights(run_, *model), "");
  expect_seed(*model, 10);
  const CheckpointStore store(run_ / "checkpoints", StoreAccess::kRead);
  load_weights(store.path_of(20) / "model.safetensors", *model);
  expect_seed(*model, 20);
  damage(10);
  EXPECT_THAT(load_weights(run_, *model), HasSubstr("step 10 is damaged"));
  expect_seed(*model, 30);
}

TEST_F(ModelFiles, TheFirstTensorThatIsNotFiniteIsNamed) {
  const auto model = model_of_seed(1);
  const NamedTensors parameters = parameters_of(*model);
  EXPECT_EQ(first_tensor_not_finite(parameters), "");
  at::NoGradGuard no_gradient;
  parameters[2].second.mutable_grad() = at::full_like(parameters[2].second, NAN);
  EXPECT_EQ(first_tensor_not_finite(parameters), "the gradient of " + parameters[2].first);
  parameters[5].second.flatten()[0].fill_(INFINITY);
  EXPECT_EQ(first_tensor_not_finite(parameters), parameters[5].first);
}

TEST_F(ModelFiles, InBf16TheBlendStaysInFp32) {
  const auto model = model_of_seed(1);
  place_model(*model, kCpu, Precision::kBf16);
  for (const auto& [name, parameter] : parameters_of(*model)) {
    const bool blend = name.find("blend") != std::string::npos;
    EXPECT_EQ(parameter.scalar_type(), blend ? at::kFloat : at::kBFloat16) << name;
  }
}

}  // namespace
}  // namespace fmmformer::train
