// SPDX-License-Identifier: Apache-2.0
#include "report/groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace fmmformer::report {
namespace {

Record run(const std::string& group, const std::string& task, double best) {
  Record record{.name = group, .group = group, .task = task};
  record.result.best_metric = best;
  return record;
}

TEST(Spread, IsMeanSampleDeviationAndRange) {
  const std::vector<double> values = {1, 2, 6};
  const Spread spread = spread_of(values);
  EXPECT_DOUBLE_EQ(spread.mean, 3);
  EXPECT_DOUBLE_EQ(spread.deviation, std::sqrt((4.0 + 1.0 + 9.0) / 2));
  EXPECT_EQ(spread.low, 1);
  EXPECT_EQ(spread.high, 6);
  EXPECT_EQ(spread.count, 3);
}

TEST(Spread, LeavesUnknownValuesOut) {
  const std::vector<double> values = {kUnknown, 4, kUnknown};
  const Spread spread = spread_of(values);
  EXPECT_EQ(spread.mean, 4);
  EXPECT_EQ(spread.count, 1);
  EXPECT_TRUE(std::isnan(spread.deviation)) << "one value has no deviation";
}

TEST(Spread, OfNothingIsUnknown) {
  EXPECT_EQ(spread_of(std::vector<double>{}).count, 0);
  EXPECT_TRUE(std::isnan(spread_of(std::vector<double>{kUnknown}).mean));
}

TEST(SpreadCurve, JoinsTheSeedsStepByStep) {
  const Curve first = {{.step = 10, .loss = 2}, {.step = 20, .loss = 1}};
  const Curve second = {{.step = 10, .loss = 4}, {.step = 20, .loss = 2}};
  const std::vector<const Curve*> seeds = {&first, &second};
  const SpreadCurve curve = spread_curve(seeds, &CurvePoint::loss);
  ASSERT_EQ(curve.size(), 2U);
  EXPECT_EQ(curve[0].step, 10);
  EXPECT_DOUBLE_EQ(curve[0].value.mean, 3);
  EXPECT_EQ(curve[0].value.low, 2);
  EXPECT_EQ(curve[0].value.high, 4);
  EXPECT_DOUBLE_EQ(curve[1].value.mean, 1.5);
}

TEST(SpreadCurve, InterpolatesASeedBetweenItsPointsAndNotBeyondThem) {
  const Curve first = {{.step = 10, .loss = 2}, {.step = 30, .loss = 6}};
  const Curve second = {{.step = 20, .loss = 1}, {.step = 40, .loss = 3}};
  const std::vector<const Curve*> seeds = {&first, &second};
  const SpreadCurve curve = spread_curve(seeds, &CurvePoint::loss);
  ASSERT_EQ(curve.size(), 4U);
  EXPECT_EQ(curve[0].value.count, 1);
  EXPECT_DOUBLE_EQ(curve[1].value.mean, (4.0 + 1.0) / 2);
  EXPECT_DOUBLE_EQ(curve[2].value.mean, (6.0 + 2.0) / 2);
  EXPECT_EQ(curve[3].value.count, 1);
  EXPECT_DOUBLE_EQ(curve[3].value.mean, 3);
}

TEST(SpreadCurve, SkipsPointsWithoutTheValue) {
  const Curve only = {{.step = 1, .loss = 5}, {.step = 2, .metric = 0.5}};
  const std::vector<const Curve*> seeds = {&only};
  EXPECT_EQ(spread_curve(seeds, &CurvePoint::loss).size(), 1U);
  EXPECT_EQ(spread_curve(seeds, &CurvePoint::metric).size(), 1U);
}

TEST(SpreadCurve, ThinningKeepsBothEnds) {
  SpreadCurve curve;
  for (int step = 0; step < 1234; ++step) curve.push_back({.step = static_cast<double>(step)});
  const SpreadCurve thin = thinned(curve, 100);
  ASSERT_EQ(thin.size(), 100U);
  EXPECT_EQ(thin.front().step, 0);
  EXPECT_EQ(thin.back().step, 1233);
  EXPECT_EQ(thinned(curve, 2000).size(), curve.size());
}

TEST(Groups, HoldTheSeedsOfOneModelOnOneTask) {
  const std::vector<Record> records = {run("a", "copy", 0.5), run("b", "copy", 0.9),
                                       run("a", "copy", 0.7), run("a", "text", 0.1)};
  const std::vector<Group> groups = group_runs(records);
  ASSERT_EQ(groups.size(), 3U);
  EXPECT_EQ(groups[0].name, "a");
  EXPECT_EQ(groups[0].runs, (std::vector<const Record*>{&records[0], &records[2]}));
  EXPECT_EQ(groups[2].task, "text");
  const Spread best = spread_of(groups[0], &TrainingResult::best_metric);
  EXPECT_DOUBLE_EQ(best.mean, 0.6);
  EXPECT_NEAR(best.deviation, 0.1414213562, 1e-9);
}

Record configured(const std::string& group, std::vector<ConfigLine> config) {
  Record record = run(group, "copy", 0.5);
  record.name = "copy/x";
  record.config = std::move(config);
  return record;
}

TEST(Groups, HoldRunsThatDifferInHowOftenTheyAreSavedAndInHowTheirSettingsWereGiven) {
  const std::vector<Record> records = {
      configured("copy/x #1",
                 {{"about", "x"}, {"train.seed", "1"}, {"train.checkpoint_every", "10"}}),
      configured("copy/x train.checkpoint_every=5 #2",
                 {{"about", "y"}, {"train.seed", "2"}, {"train.checkpoint_every", "5"}})};
  const std::vector<Group> groups = group_runs(records);
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].name, "copy/x");
  EXPECT_EQ(groups[0].runs.size(), 2U);
}

TEST(Groups, OfOneNameSayWhatTellsThemApartAndNoMore) {
  const auto with = [](const std::string& steps, const std::string& heads) {
    return configured("copy/x train.steps=" + steps + " #" + heads, {{"train.seed", "1"},
                                                                     {"train.batch_size", "8"},
                                                                     {"train.steps", steps},
                                                                     {"model.heads", heads}});
  };
  const std::vector<Record> records = {with("10", "2"), with("20", "2"), with("20", "2")};
  const std::vector<Group> groups = group_runs(records);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].name, "copy/x train.steps=10");
  EXPECT_EQ(groups[1].name, "copy/x train.steps=20");
}

TEST(Groups, OfManyDifferencesNameThree) {
  std::vector<ConfigLine> one = {{"train.seed", "1"}}, other = one;
  for (const char* key : {"model.a", "model.b", "model.c", "model.d", "model.e"}) {
    one.emplace_back(key, "1"), other.emplace_back(key, "2");
  }
  std::vector<ConfigLine> third = other;
  third.back().second = "3";
  const std::vector<Record> records = {configured("a", one), configured("b", other),
                                       configured("c", third)};
  const std::vector<Group> groups = group_runs(records);
  EXPECT_EQ(groups[1].name, "copy/x model.a=2 model.b=2 model.c=2 and 2 more");
  EXPECT_EQ(groups[2].name, groups[1].name + " #2") << "every group has a name of its own";
}

TEST(Groups, LeaveScalingRecordsOut) {
  EXPECT_TRUE(group_runs({Record{.kind = RecordKind::kScaling}}).empty());
}

}  // namespace
}  // namespace fmmformer::report
