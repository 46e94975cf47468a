// SPDX-License-Identifier: Apache-2.0
#include "report/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "report/synthetic_runs.h"
#include "report/temporary_folder.h"

namespace fmmformer::report {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

Record parsed(const json& value) { return parse_record(value, "runs/x/record.json"); }

std::string refusal(const json& value) {
  return error_of<std::invalid_argument>([&] { parsed(value); });
}

TEST(ParseRecord, ReadsATrainingRun) {
  const Record record = parsed(synthetic_training("fmm", 2));
  EXPECT_EQ(record.kind, RecordKind::kTraining);
  EXPECT_EQ(record.name, "fmm-s2");
  EXPECT_EQ(record.group, "FMM, 2 kernels + band 10");
  EXPECT_EQ(record.seed, 2);
  EXPECT_EQ(record.metric.name, "accuracy");
  EXPECT_EQ(record.train.size(), 200U);
  EXPECT_EQ(record.valid.size(), 20U);
  ASSERT_EQ(record.blend.size(), 4U);
  EXPECT_EQ(record.blend[0].far.size(), 2U);
  EXPECT_EQ(record.blend[0].near.size(), 8U);
  EXPECT_EQ(record.blend[0].near[0].size(), 32U);
  EXPECT_EQ(record.pictures.step, 900);
  EXPECT_EQ(record.pictures.weights, "best");
  ASSERT_EQ(record.maps.heads.size(), 32U);
  EXPECT_EQ(record.maps.heads[9].layer, 1);
  EXPECT_EQ(record.maps.heads[9].head, 1);
  ASSERT_TRUE(record.maps.heads[9].near);
  EXPECT_EQ(record.maps.heads[9].near->rows, 64);
  EXPECT_EQ(record.maps.tokens[1], "7");
}

TEST(ParseRecord, ReadsAScalingRun) {
  const Record record = parsed(synthetic_scaling());
  EXPECT_EQ(record.kind, RecordKind::kScaling);
  ASSERT_EQ(record.series.size(), 4U);
  EXPECT_EQ(record.series[0].attention, "softmax");
  EXPECT_EQ(record.series[0].points.back().failure, "out of memory");
  EXPECT_TRUE(std::isnan(record.series[0].points.back().seconds));
}

TEST(ParseRecord, ReadsTimingsOnAGpu) {
  const Record record = parsed(synthetic_gpu());
  EXPECT_EQ(record.kind, RecordKind::kGpu);
  ASSERT_EQ(record.gpu.timings.size(), 3U);
  const GpuTiming& timing = record.gpu.timings[0];
  EXPECT_EQ(timing.name, "gpu_copy");
  EXPECT_DOUBLE_EQ(timing.graph, 0.2e-3);
  EXPECT_DOUBLE_EQ(timing.limit, 0.15e-3);
  EXPECT_TRUE(std::isnan(timing.limit_bytes));
  ASSERT_EQ(timing.peers.size(), 2U);
  EXPECT_EQ(record.gpu.timings[2].failure, "out of memory");
  EXPECT_TRUE(std::isnan(record.gpu.timings[2].graph));
  EXPECT_TRUE(record.gpu.bars[0].met);
  EXPECT_EQ(record.gpu.checks[0].passed, 120);
}

TEST(ParseRecord, NeedsNothingButFormatVersionAndKind) {
  for (const std::string kind : {"training", "scaling"}) {
    const Record record = parsed(minimal_record(kind));
    EXPECT_EQ(record.name, "x") << "the folder's name";
    EXPECT_EQ(record.group, "x");
    EXPECT_FALSE(record.seed);
    EXPECT_TRUE(std::isnan(record.result.best_metric));
    EXPECT_TRUE(record.train.empty());
  }
}

TEST(ParseRecord, FlattensSettingsToTheSpellingOfTheCommandLine) {
  nlohmann::ordered_json value = minimal_record("training");
  value["config"] = nlohmann::ordered_json::parse(
      R"({"model": {"heads": 8, "far": {"maps": ["elu", "tanh"]}}, "name": "z", "a": true})");
  const Record record = parse_record(value, "record.json");
  EXPECT_THAT(record.config, ElementsAre(ConfigLine{"model.heads", "8"},
                                         ConfigLine{"model.far.maps", R"(["elu","tanh"])"},
                                         ConfigLine{"name", "z"}, ConfigLine{"a", "true"}));
}

TEST(ParseRecord, TellsTheMachineInOneLine) {
  json value = minimal_record("training");
  value["machine"] = "two cores";
  EXPECT_EQ(parsed(value).machine, "two cores");
  value["machine"] = {{"a_cpu", "EPYC"}, {"cores", 2}, {"gpu", nullptr}};
  EXPECT_EQ(parsed(value).machine, "EPYC, 2 cores");
}

TEST(ParseRecord, TakesTheBestFromTheCurveWhereTheResultLacksIt) {
  json value = minimal_record("training");
  value["curves"]["valid"] = {{{"step", 1}, {"metric", nullptr}},
                              {{"step", 2}, {"metric", 0.9}},
                              {{"step", 3}, {"metric", 0.4}}};
  EXPECT_EQ(parsed(value).result.best_step, 2);
  EXPECT_EQ(parsed(value).result.steps, 3);
  value["metric"] = {{"name", "perplexity"}, {"higher_is_better", false}};
  EXPECT_EQ(parsed(value).result.best_metric, 0.4);
  value["result"] = {{"best_metric", 0.1}, {"best_step", 7}};
  EXPECT_EQ(parsed(value).result.best_step, 7);
}

TEST(ParseRecord, OrdersCurvesAndKeepsNullsUnknown) {
  json value = minimal_record("training");
  value["curves"]["train"] = {{{"step", 20}, {"loss", nullptr}}, {{"step", 10}, {"loss", 2}}};
  const Record record = parsed(value);
  EXPECT_EQ(record.train[0].step, 10);
  EXPECT_TRUE(std::isnan(record.train[1].loss));
}

TEST(ParseRecord, ReadsWeightsPerHead) {
  json value = minimal_record("training");
  value["blend"] = {{{"near", {0.25, 0.5}}, {"far", {{0.75, 1.0}}}}};
  const Record record = parsed(value);
  EXPECT_EQ(record.blend[0].near, (FieldWeights{{0.25}, {0.5}}));
  EXPECT_EQ(record.blend[0].far, (std::vector<FieldWeights>{{{0.75}, {1.0}}}));
}

TEST(ParseRecord, ReadsAMapOfBytes) {
  const Record record =
      parsed(json::parse(R"({"format": "fmmformer-record", "version": 1, "kind": "training",
        "maps": {"heads": [{"near": {"rows": 1, "columns": 3, "low": -1, "high": 1.55,
                                     "base64": "AGT/"}}]}})"));
  const Matrix& near = *record.maps.heads.at(0).near;
  EXPECT_EQ(near.columns, 3);
  EXPECT_FLOAT_EQ(near.values[0], -1);
  EXPECT_NEAR(near.values[1], 0, 1e-6);
  EXPECT_FLOAT_EQ(near.values[2], 1.55F);
}

TEST(ParseRecord, RefusesAnotherVersionAndSaysWhatToDo) {
  json value = minimal_record("training");
  value["version"] = 2;
  EXPECT_THAT(refusal(value), AllOf(HasSubstr("runs/x/record.json"), HasSubstr("version is 2"),
                                    HasSubstr("reads version 1"), HasSubstr("update")));
  value.erase("version");
  EXPECT_THAT(refusal(value), HasSubstr("'version'"));
}

TEST(ParseRecord, RefusesOtherFiles) {
  EXPECT_THAT(refusal({{"machine", "x"}}), HasSubstr("not a record of fmmformer"));
  EXPECT_THAT(refusal(json::array({1, 2})), HasSubstr("an object"));
  json value = minimal_record("trainning");
  EXPECT_THAT(refusal(value), HasSubstr("did you mean 'training'?"));
}

TEST(ParseRecord, NamesTheMemberThatHasTheWrongType) {
  json value = minimal_record("training");
  value["curves"]["train"] = {{{"step", 1}, {"loss", "low"}}};
  EXPECT_THAT(refusal(value),
              AllOf(HasSubstr("'curves.train[0].loss' should be a number"), HasSubstr("\"low\"")));
  value = minimal_record("training");
  value["maps"]["heads"] = {{{"near", {{1, 2}, {3}}}}};
  EXPECT_THAT(refusal(value), HasSubstr("'maps.heads[0].near[1]' should be a row of 2 numbers"));
  value = minimal_record("scaling");
  value["series"] = {{{"points", {{{"length", 0}}}}}};
  EXPECT_THAT(refusal(value), HasSubstr("'series[0].points[0].length'"));
  value = minimal_record("training");
  value["seed"] = 1.5;
  EXPECT_THAT(refusal(value), HasSubstr("'seed' should be a whole number"));
}

class ReadRecord : public TemporaryFolderTest {
 protected:
  std::string read_error(const fs::path& file) const {
    return error_of<std::invalid_argument>([&] { read_record(file); });
  }
};

TEST_F(ReadRecord, ReadsAFile) {
  const fs::path file = write("a/record.json", synthetic_training("linear", 1).dump());
  EXPECT_EQ(read_record(file).name, "linear-s1");
}

TEST_F(ReadRecord, RefusesAnEmptyFileAndATornOne) {
  EXPECT_THAT(read_error(write("empty.json", " \n")),
              AllOf(HasSubstr("empty.json"), HasSubstr("is empty")));
  const std::string whole = minimal_record("training").dump();
  EXPECT_THAT(read_error(write("torn.json", whole.substr(0, whole.size() / 2))),
              AllOf(HasSubstr("torn.json"), HasSubstr("is not JSON"), HasSubstr("cut short")));
  EXPECT_THAT(read_error(folder_ / "none.json"), HasSubstr("cannot be read"));
  EXPECT_THAT(read_error(folder_), HasSubstr("cannot be read"));
}

TEST_F(ReadRecord, FindsRecordsInRunFoldersAndBelowFoldersOfRuns) {
  const fs::path b = write("runs/b/record.json", "{}");
  const fs::path a = write("runs/a/record.json", "{}");
  const fs::path other = write("other.json", "{}");
  EXPECT_THAT(find_records({folder_ / "runs"}), ElementsAre(a, b));
  EXPECT_THAT(find_records({folder_ / "runs" / "b", other}), ElementsAre(b, other));
  EXPECT_THAT(find_records({b, folder_ / "runs" / "b", folder_ / "runs"}), ElementsAre(b, a))
      << "each once";
}

TEST_F(ReadRecord, NamesAPathThatHoldsNone) {
  const auto find_error = [](const fs::path& path) {
    return error_of<std::invalid_argument>([&] { find_records({path}); });
  };
  EXPECT_THAT(find_error(folder_), HasSubstr("holds no record.json"));
  EXPECT_THAT(find_error(folder_ / "missing"), HasSubstr("does not exist"));
}

}  // namespace
}  // namespace fmmformer::report
