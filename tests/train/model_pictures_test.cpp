// SPDX-License-Identifier: Apache-2.0
#include "train/model_pictures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/temporary_folder.h"
#include "fmmformer/core/base64.h"
#include "train/small_experiment.h"

namespace fmmformer::train {
namespace {

using Json = nlohmann::ordered_json;

Json pictures_of(const std::vector<std::string>& overrides) {
  const TemporaryFolder folder;
  const RunFolder held = RunFolder::create(folder.path());
  const ExperimentConfig experiment = small_experiment(overrides);
  RunRecorder recorder(held, {.experiment = experiment});
  add_pictures(*make_model(experiment.model, 1), *tasks::make_task(experiment.task, 1),
               c10::Device(c10::kCPU), recorder);
  recorder.write(RunStatus::kFinished);
  return held.read_record();
}

std::vector<uint8_t> levels_of(const Json& picture) {
  return base64_decoded(picture.at("base64").get<std::string>()).value();
}

TEST(ModelPictures, EveryHeadHasItsFieldsAndTheirBlend) {
  const Json record = pictures_of({});
  const Json& heads = record.at("maps").at("heads");
  ASSERT_EQ(heads.size(), 4U);  // 2 layers x 2 heads
  const size_t length = record.at("maps").at("tokens").size();
  for (const Json& head : heads) {
    for (const auto* field : {"near", "far", "blend"}) {
      EXPECT_EQ(head.at(field).at("rows"), length) << field;
      EXPECT_EQ(levels_of(head.at(field)).size(), length * length) << field;
    }
  }
  ASSERT_EQ(record.at("blend").size(), 2U);
  EXPECT_EQ(record.at("blend").at(0).at("near").size(), 2U);  // heads
  EXPECT_EQ(record.at("blend").at(0).at("far").size(), 2U);   // kernels
  EXPECT_EQ(record.at("blend").at(1).at("feature_maps").at(1), "elu_flip");
}

TEST(ModelPictures, WhatFillsAnExampleUpIsNotDrawn) {
  const Json tokens = pictures_of({}).at("maps").at("tokens");
  EXPECT_LT(tokens.size(), 16U);
  EXPECT_EQ(tokens.size() % 2, 1U);  // symbols, a separator and the symbols again
  EXPECT_EQ(tokens.back(), tokens.at(tokens.size() / 2 - 1));
}

TEST(ModelPictures, AFieldThatTheModelLacksHasNoPicture) {
  const Json linear = pictures_of({"model.attention.bandwidth=0"}).at("maps").at("heads").at(0);
  EXPECT_FALSE(linear.contains("near"));
  EXPECT_TRUE(linear.contains("far"));
  const Json band = pictures_of({"model.attention.feature_maps=[]"}).at("maps").at("heads").at(0);
  EXPECT_TRUE(band.contains("near"));
  EXPECT_FALSE(band.contains("far"));
}

TEST(ModelPictures, NothingOutsideTheBandIsNear) {
  const Json near = pictures_of({}).at("maps").at("heads").at(0).at("near");
  EXPECT_EQ(near.at("low"), 0);
  const std::vector<uint8_t> levels = levels_of(near);
  const auto length = near.at("rows").get<size_t>();
  for (size_t query = 0; query < length; ++query) {
    for (size_t key = 0; key < length; ++key) {
      const bool in_band = key <= query && query - key < 3;
      EXPECT_TRUE(in_band || levels[query * length + key] == 0) << query << ", " << key;
    }
  }
}

TEST(ModelPictures, LongSequencesAreCutAndShownInCells) {
  const Json record = pictures_of({"task.copy.length=400"});
  EXPECT_EQ(record.at("maps").at("heads").at(0).at("blend").at("rows"), kMapCells);
  EXPECT_EQ(record.at("maps").at("tokens").size(), static_cast<size_t>(kMapCells));
}

TEST(ModelPictures, ABlendThatIsNotLearnedIsNotDrawn) {
  EXPECT_FALSE(pictures_of({"model.attention.blend.rule=sum"}).contains("blend"));
}

}  // namespace
}  // namespace fmmformer::train
