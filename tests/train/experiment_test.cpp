// SPDX-License-Identifier: Apache-2.0
#include "train/experiment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/temporary_folder.h"
#include "fmmformer/models/model.h"
#include "train/small_experiment.h"

namespace fmmformer::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    parse_experiment(text, "x.toml", overrides);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Experiment, TheTaskFixesVocabularyLengthAndKindOfTheModel) {
  const ExperimentConfig experiment = small_experiment();
  EXPECT_EQ(experiment.model.vocabulary, 5);
  EXPECT_EQ(experiment.model.max_length, 16);
  EXPECT_EQ(experiment.model.kind, ModelKind::kLanguageModel);
}

TEST(Experiment, OfARunOpensNoDataToKnowItsVocabulary) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder / "config.toml";
  std::ofstream(file) << "[task]\nname = \"wikitext\"\n[task.wikitext]\ndata = \"nowhere\"\n"
                         "[model]\nvocabulary = 9\n[model.attention]\ncausal = true\n";
  EXPECT_EQ(load_run_experiment(file).model.vocabulary, 9);
  EXPECT_THROW(load_experiment(file), std::invalid_argument);
}

TEST(Experiment, WrittenAndReadAgainItIsTheSame) {
  const std::string text = experiment_toml(small_experiment());
  EXPECT_EQ(experiment_toml(parse_experiment(text, "again.toml")), text);
}

TEST(Experiment, AMisspeltKeyIsNamedWithFileLineAndTheNearestKey) {
  EXPECT_THAT(error_of("name = \"x\"\n[train]\nstepps = 3\n"),
              AllOf(HasSubstr("x.toml:3"), HasSubstr("train.stepps"), HasSubstr("steps")));
}

TEST(Experiment, AValueOutOfRangeIsNamedWithWhatIsAllowed) {
  EXPECT_THAT(error_of("[train]\nsteps = 0\n"),
              AllOf(HasSubstr("x.toml:2"), HasSubstr("train.steps"), HasSubstr("at least 1")));
}

TEST(Experiment, AModelTooSmallForItsTaskIsRefused) {
  EXPECT_THAT(error_of("[model]\nvocabulary = 3\n[model.attention]\ncausal = true\n"),
              AllOf(HasSubstr("x.toml:2"), HasSubstr("model.vocabulary is 3"), HasSubstr("11")));
}

TEST(Experiment, AModelOfTokensMustBeCausal) {
  EXPECT_THAT(error_of("[model.attention]\ncausal = false\n"),
              AllOf(HasSubstr("x.toml:2"), HasSubstr("causal")));
  EXPECT_THAT(error_of(""), testing::StartsWith("x.toml: model.attention.causal is false"));
}

TEST(Experiment, AccumulationMustDivideTheBatch) {
  EXPECT_THAT(error_of(kSmallConfig, {"train.accumulate=3"}),
              AllOf(HasSubstr("train.accumulate"), HasSubstr("batch_size")));
}

TEST(Experiment, AModelThatAttendsToNothingIsRefusedBeforeARunBegins) {
  EXPECT_THAT(
      error_of(kSmallConfig, {"model.attention.bandwidth=0", "model.attention.feature_maps=[]"}),
      HasSubstr("model.attention: bandwidth is 0 and feature_maps is []"));
}

TEST(Experiment, FastWeightsThatCannotBeAreRefusedBeforeARunBegins) {
  EXPECT_THAT(error_of(kSmallConfig,
                       {"model.attention.fast_weights=true", "model.attention.feature_maps=[]"}),
              HasSubstr("model.attention: fast_weights is true and feature_maps is []"));
}

TEST(Experiment, PartsThatDoNotFitAreNamedOnceAndByTheOverrideThatBrokeThem) {
  EXPECT_THAT(error_of(kSmallConfig, {"model.heads=3"}),
              testing::StartsWith("--set model.heads=3: model: dim is "));
  EXPECT_THAT(error_of(kSmallConfig, {"model.attention.blend.near=tied"}),
              testing::StartsWith("--set model.attention.blend.near=tied: model.attention.blend: "
                                  "near is 'tied'"));
}

TEST(Experiment, DifferencesAreInWhatIsComputed) {
  EXPECT_TRUE(differences(small_experiment(), small_experiment({"about=x", "name=y"})).empty());
  const auto found = differences(small_experiment(), small_experiment({
                                                         "model.attention.near_scale=0.5",
                                                         "train.seed=9",
                                                     }));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].key, "model.attention.near_scale");
  EXPECT_EQ(found[0].first, "left out");
  EXPECT_EQ(found[0].second, "0.5");
  EXPECT_EQ(found[1].key, "train.seed");
}

// The rows of the paper's two tables of language models, and their parameters beyond those of the
// first, over all sixteen layers: gates, and the blend.
struct LanguageModelRow {
  const char* name;
  int64_t more_parameters;
};
constexpr LanguageModelRow kLanguageModels[] = {{"softmax", 0},
                                                {"linear", 0},
                                                {"band5", 0},
                                                {"band20", 0},
                                                {"fmm1_band5", 2'048},
                                                {"fmm1_band20", 2'048},
                                                {"fmm2_band20", 2'048},
                                                {"fast_weights", 16'384},
                                                {"fast_weights_linear", 16'416},
                                                {"fmm1_fast_weights_band20", 20'480},
                                                {"fmm2_fast_weights_band20", 20'512}};

ExperimentConfig preset(const std::string& name) {
  return load_experiment(std::string(FMMFORMER_CONFIGS) + "/" + name + ".toml");
}

TEST(Experiment, ThePapersLanguageModelsLoadWithoutTheirData) {
  for (const auto& [name, more_parameters] : kLanguageModels) {
    const std::string row = name;
    const ExperimentConfig experiment = preset("wikitext103/" + row);
    EXPECT_EQ(experiment.name, "wikitext103/" + row);
    EXPECT_EQ(experiment.model.vocabulary, 267'735);
    EXPECT_EQ(experiment.model.max_length, 256);
    EXPECT_EQ(experiment.train.batch_size, experiment.task.wikitext.columns);
    const auto rate = [&](int64_t update) {
      return scheduled_update(experiment.schedule, update, experiment.train.steps).learning_rate;
    };
    EXPECT_DOUBLE_EQ(rate(0), 2.5e-4);
    EXPECT_DOUBLE_EQ(rate(1000), 1.25e-4);
    EXPECT_LT(rate(499'999), 1e-9);
  }
}

TEST(Experiment, TheLanguageModelsHaveThePublishedNumberOfParameters) {
  const auto count = [](ModelConfig model) { return make_model(model, 1)->parameter_count(); };
  for (const auto& [row, more_parameters] : kLanguageModels) {
    // Words have 128 + 1 parameters each, the head's one and three clusters as many.
    EXPECT_EQ(count(preset("wikitext2/" + std::string(row)).model),
              44'018'394 - (267'735 - 33'278) * 129 - 2 * 129 + more_parameters)
        << row;
  }
  EXPECT_EQ(count(preset("wikitext103/fmm2_fast_weights_band20").model), 44'018'394 + 20'512);
}

TEST(Experiment, WithoutBothFieldsALanguageModelHasNothingToBlend) {
  for (const std::string row : {"linear", "band5", "band20"}) {
    const AttentionConfig attention = preset("wikitext103/" + row).model.attention;
    const BlendRule rule = blend_rule(
        attention.blend,
        {.near = attention.bandwidth > 0, .kernels = std::ssize(attention.feature_maps)});
    EXPECT_EQ(rule.near, WeightSource::kFixed) << row;
    EXPECT_EQ(rule.far, WeightSource::kFixed) << row;
    EXPECT_EQ(rule.near_initial, 1) << row;
    EXPECT_EQ(rule.far_initial, 1) << row;
  }
}

TEST(Experiment, TheModelsOfTheSmallTextAreThoseOfTheLargeOne) {
  for (const auto& [name, more_parameters] : kLanguageModels) {
    const std::string row = name;
    const ExperimentConfig small = preset("wikitext2/" + row);
    EXPECT_EQ(small.model.vocabulary, 33'278);
    EXPECT_LT(small.model.cutoffs.back(), small.model.vocabulary);
    EXPECT_EQ(small.schedule.learning_rate, 1e-3) << row << ": the same budget for all";
    EXPECT_EQ(small.train.steps, 2550) << row;
    for (const ConfigDifference& one : differences(preset("wikitext103/" + row), small)) {
      EXPECT_THAT(one.key, testing::AnyOf("task.wikitext.data", "task.wikitext.vocabulary",
                                          "model.cutoffs", "model.vocabulary", "model.dropout",
                                          "model.embedding_dropout", "model.final_dropout",
                                          testing::StartsWith("train."), "schedule.warmup",
                                          "schedule.learning_rate", "schedule.first_at_peak"))
          << row;
    }
  }
}

TEST(Experiment, AFileOfANewerProgramIsToldApartFromAMistake) {
  EXPECT_THAT(error_of("format = 2\nfuture_key = 1\n"),
              AllOf(HasSubstr("newer fmmformer"), HasSubstr("x.toml:1")));
}

TEST(Experiment, OverridesWinOverTheFile) {
  EXPECT_EQ(small_experiment({"train.steps=7"}).train.steps, 7);
  EXPECT_EQ(small_experiment({"model.attention.feature_maps=elu"}).model.attention.feature_maps,
            std::vector<FeatureMap>{FeatureMap::kElu});
}

}  // namespace
}  // namespace fmmformer::train
