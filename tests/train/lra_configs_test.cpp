// SPDX-License-Identifier: Apache-2.0
// The experiments of Long Range Arena are what the published code does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "fmmformer/models/model.h"
#include "report/lra.h"
#include "train/experiment.h"

namespace fmmformer::train {
namespace {

using report::LraName;

/// A task's line in the table of the published training.
struct PublishedTask {
  std::string name;
  int64_t vocabulary, length, classes, batch, steps, warmup, evaluate_every, evaluation_batches;
  int64_t parameters;               // without blending weights
  int64_t one_kernel, two_kernels;  // what blending adds
};
const PublishedTask kTasks[] = {
    {"listops", 32, 2048, 10, 32, 5'000, 1'000, 50, 62, 209'802, 8, 12},
    {"text", 512, 4096, 2, 32, 20'000, 8'000, 500, 781, 370'562, 128, 128},
    {"retrieval", 512, 4096, 2, 32, 30'000, 800, 300, 565, 395'138, 4, 8},
    {"image", 512, 1024, 10, 256, 35'000, 175, 175, 20, 174'986, 128, 130},
    {"pathfinder", 512, 1024, 2, 256, 62'400, 312, 312, 312, 173'954, 2, 4}};

constexpr auto kElu = FeatureMap::kElu, kFlip = FeatureMap::kEluFlip;

/// A row's attention.
struct PublishedRow {
  AttentionKind kind = AttentionKind::kFmm;
  int64_t bandwidth = 0;
  std::vector<FeatureMap> feature_maps;
};
const std::map<std::string, PublishedRow> kRows = {
    {"softmax", {.kind = AttentionKind::kSoftmax}},
    {"linear", {.feature_maps = {kElu}}},
    {"band5", {.bandwidth = 5}},
    {"fmm1_band5", {.bandwidth = 5, .feature_maps = {kElu}}},
    {"fmm2_band5", {.bandwidth = 5, .feature_maps = {kElu, kFlip}}}};

ExperimentConfig load(const LraName& name) {
  return load_experiment(std::filesystem::path(FMMFORMER_CONFIGS) / (name.preset() + ".toml"));
}

int64_t count_of_parameters(const ExperimentConfig& experiment) {
  return make_model(experiment.model, 1)->parameter_count();
}

void expect_published_model(const ModelConfig& model, const PublishedTask& task) {
  EXPECT_EQ(model.vocabulary, task.vocabulary);
  EXPECT_EQ(model.max_length, task.length);
  EXPECT_EQ(model.classes, task.classes);
  EXPECT_EQ(model.dim, 64);
  EXPECT_EQ(model.ffn_dim, 128);
  EXPECT_EQ(model.head_hidden, 128);
  EXPECT_EQ(model.heads, 2);
  EXPECT_EQ(model.width_of_head(), 32);
  EXPECT_EQ(model.layers, 2);
  EXPECT_EQ(model.norm, NormPlacement::kPre);
  EXPECT_TRUE(model.final_norm);
  EXPECT_EQ(model.activation, Activation::kGelu);
  EXPECT_EQ(model.dropout, 0.1);
  EXPECT_EQ(model.embedding_dropout, 0.1);
  EXPECT_EQ(model.positions, Positions::kLearned);
  EXPECT_EQ(model.initialisation, Initialisation::kNormalEmbeddings);
  EXPECT_EQ(model.initial_std, 0.02);
  EXPECT_EQ(model.pooling, Pooling::kPaddedLength);
  EXPECT_FALSE(model.scale_embedding);
}

void expect_published_attention(const AttentionConfig& attention, const PublishedRow& row,
                                const std::string& task) {
  EXPECT_EQ(attention.kind, row.kind);
  EXPECT_FALSE(attention.causal);
  EXPECT_TRUE(attention.bias);
  const bool far_only = row.kind == AttentionKind::kFmm && row.bandwidth == 0;
  if (!far_only) {
    EXPECT_EQ(attention.dropout, 0.1);
  }
  if (row.kind == AttentionKind::kSoftmax) return;
  EXPECT_EQ(attention.bandwidth, row.bandwidth);
  EXPECT_EQ(attention.feature_maps, row.feature_maps);
  EXPECT_FALSE(attention.unit_features);
  EXPECT_FALSE(attention.near_scale.has_value());
  EXPECT_EQ(attention.far_scale, 1.0);
  if (!row.feature_maps.empty()) {
    EXPECT_EQ(attention.normaliser, Normaliser::kInvSqrtLength);
  }
  const BlendFields fields{.near = row.bandwidth > 0, .kernels = std::ssize(row.feature_maps)};
  const bool blends = fields.near && fields.kernels > 0;
  const BlendConfig wanted{.rule = blends ? enum_from_name<BlendPreset>(task) : BlendPreset::kSum};
  EXPECT_EQ(blend_rule(attention.blend, fields), blend_rule(wanted, fields));
}

void expect_published_training(const ExperimentConfig& experiment, const PublishedTask& task) {
  EXPECT_EQ(experiment.train.steps, task.steps);
  EXPECT_EQ(experiment.train.batch_size, task.batch);
  EXPECT_EQ(experiment.train.evaluate_every, task.evaluate_every);
  EXPECT_EQ(experiment.train.evaluation_batches, task.evaluation_batches);
  EXPECT_TRUE(experiment.train.test);
  EXPECT_EQ(experiment.optimizer.kind, OptimizerKind::kAdamW);
  EXPECT_EQ(experiment.optimizer.beta2, 0.999);
  EXPECT_EQ(experiment.optimizer.eps, 1e-6);
  EXPECT_EQ(experiment.optimizer.weight_decay, 0);
  EXPECT_EQ(experiment.optimizer.clip_tensor, 0);
  EXPECT_EQ(experiment.optimizer.clip_global, 0);
  EXPECT_EQ(experiment.schedule.kind, ScheduleKind::kOneCycle);
  EXPECT_EQ(experiment.schedule.learning_rate, 1e-4);
  EXPECT_EQ(experiment.schedule.warmup, task.warmup);
  EXPECT_EQ(experiment.schedule.start_divisor, 25);
  EXPECT_EQ(experiment.schedule.end_divisor, 1e4);
  EXPECT_TRUE(experiment.schedule.cycle_beta1);
  EXPECT_EQ(experiment.schedule.beta1_high, 0.95);
  EXPECT_EQ(experiment.schedule.beta1_low, 0.85);
}

TEST(LraConfigs, ThePublishedRecipesAreThoseOfThePublishedCode) {
  for (const PublishedTask& task : kTasks) {
    for (const auto& [row, attention] : kRows) {
      const LraName name{.task = task.name, .row = row, .recipe = "published"};
      SCOPED_TRACE(name.text());
      const ExperimentConfig experiment = load(name);
      EXPECT_EQ(experiment.name, name.text());
      EXPECT_EQ(enum_name(experiment.task.name), task.name);
      expect_published_model(experiment.model, task);
      expect_published_attention(experiment.model.attention, attention, task.name);
      expect_published_training(experiment, task);
    }
  }
}

TEST(LraConfigs, TheirModelsHaveThePublishedNumberOfParameters) {
  for (const PublishedTask& task : kTasks) {
    const auto counted = [&](const char* row) {
      return count_of_parameters(load({.task = task.name, .row = row, .recipe = "published"}));
    };
    EXPECT_EQ(counted("softmax"), task.parameters) << task.name;
    EXPECT_EQ(counted("linear"), task.parameters) << task.name;
    EXPECT_EQ(counted("band5"), task.parameters) << task.name;
    EXPECT_EQ(counted("fmm1_band5"), task.parameters + task.one_kernel) << task.name;
    EXPECT_EQ(counted("fmm2_band5"), task.parameters + task.two_kernels) << task.name;
  }
}

// What we may choose on the validation split; all else is the paper's.
bool may_be_tuned(const std::string& key) {
  const char* allowed[] = {"schedule.learning_rate", "schedule.warmup",   "model.attention.blend",
                           "model.initialisation",   "model.initial_std", "model.pooling",
                           "model.positions"};
  return std::ranges::any_of(allowed, [&](const char* one) { return key.starts_with(one); });
}

TEST(LraConfigs, TunedRecipesDifferInWhatMayBeTunedAlone) {
  for (const PublishedTask& task : kTasks) {
    for (const auto& [row, attention] : kRows) {
      const LraName tuned{.task = task.name, .row = row, .recipe = "tuned"};
      SCOPED_TRACE(tuned.text());
      const ExperimentConfig ours = load(tuned);
      const ExperimentConfig theirs = load({.task = task.name, .row = row, .recipe = "published"});
      EXPECT_EQ(ours.name, tuned.text());
      for (const ConfigDifference& difference : differences(theirs, ours)) {
        EXPECT_TRUE(may_be_tuned(difference.key)) << difference.key;
      }
      // A weight a channel for near, far and two kernels, in both layers.
      EXPECT_LE(std::abs(count_of_parameters(ours) - count_of_parameters(theirs)), 4 * 2 * 64);
    }
  }
}

TEST(LraConfigs, TextIsThereAtTheLengthThatThePublishedScriptMakes) {
  for (const std::string row : {"softmax", "fmm2_band5"}) {
    const ExperimentConfig whole = load({.task = "text", .row = row, .recipe = "published"});
    const ExperimentConfig cut =
        load({.task = "text", .row = row + "_1024", .recipe = "published"});
    std::map<std::string, std::string> changed;
    for (const ConfigDifference& one : differences(whole, cut)) changed[one.key] = one.second;
    EXPECT_THAT(changed, testing::UnorderedElementsAre(testing::Pair("task.text.length", "1024"),
                                                       testing::Pair("task.text.bytes", "1000")));
    EXPECT_EQ(count_of_parameters(cut), count_of_parameters(whole));
  }
}

}  // namespace
}  // namespace fmmformer::train
