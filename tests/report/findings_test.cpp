// SPDX-License-Identifier: Apache-2.0
#include "report/findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "report/record.h"
#include "report/synthetic_runs.h"
#include "report/temporary_folder.h"

namespace fmmformer::report {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

Findings findings_of(const json& record) {
  return parse_record(record, "runs/x/record.json").findings;
}

TEST(Findings, ReadWhatAnalysesAndGenerationLeft) {
  const Findings findings = findings_of(synthetic_language_model());
  ASSERT_EQ(findings.rank.bands.size(), 4U);
  EXPECT_EQ(findings.rank.matrices, 1000);
  EXPECT_EQ(findings.rank.bands[1].bandwidth, 5);
  EXPECT_EQ(findings.rank.bands[1].bound, 251);
  EXPECT_GT(findings.rank.bands[1].absolute.size(), 1U);
  EXPECT_EQ(findings.bands.layers.size(), 2U);
  EXPECT_EQ(findings.bands.all.energy.size(), findings.bands.widths.size());
  ASSERT_EQ(findings.samples.size(), 2U);
  EXPECT_EQ(findings.samples[0].settings, "temperature 0.8, top_k 40");
  EXPECT_EQ(findings.samples[1].settings, "temperature 0");
}

TEST(Findings, SettingsOfASampleAreThoseThatAreNotTheUsual) {
  json record = synthetic_language_model();
  record["samples"][0]["sampling"] = {
      {"temperature", 1}, {"top_k", 1}, {"top_p", 0}, {"repetition_penalty", 1}};
  EXPECT_EQ(findings_of(record).samples[0].settings, "top_k 1, top_p 0");
}

TEST(Findings, ARecordWithoutAnyHasNone) {
  const json page = findings_json(findings_of(minimal_record("training")));
  EXPECT_TRUE(page.at("rank").is_null());
  EXPECT_TRUE(page.at("bands").is_null());
  EXPECT_TRUE(page.at("samples").empty());
}

TEST(Findings, WhatDoesNotFitIsNamed) {
  json record = synthetic_language_model();
  record["analysis"]["bands"]["layers"][1]["mass"].erase(0);
  EXPECT_THAT(error_of<std::invalid_argument>([&] { findings_of(record); }),
              HasSubstr("analysis.bands.layers[1]"));
  record = synthetic_language_model();
  record["analysis"]["rank"]["bands"][0]["absolute"][0] = {1, 2, 3};
  EXPECT_THAT(error_of<std::invalid_argument>([&] { findings_of(record); }),
              HasSubstr("analysis.rank.bands[0].absolute[0]"));
}

}  // namespace
}  // namespace fmmformer::report
