// SPDX-License-Identifier: Apache-2.0
#include "cli/lra_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/lines_of.h"
#include "report/lra.h"

namespace fmmformer::cli {
namespace {

using report::Record;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

Record lra_run(const std::string& name, double valid, double test = report::kUnknown) {
  Record record{.name = name, .seed = 1, .status = "finished"};
  record.result = {.best_metric = valid,
                   .test_metric = test,
                   .steps = 5000,
                   .seconds = 61,
                   .seconds_per_step = 0.0021,
                   .peak_bytes = 1.5 * 1024 * 1024 * 1024};
  return record;
}

TEST(LraTable, HasOursBesideThePapersWithTheDifferenceAndTheCost) {
  const auto lines = lines_of(lra_table({lra_run("lra/listops/softmax.published", 0.36, 0.3523)}));
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("| task"), HasSubstr("paper"), HasSubstr("ms/step")));
  EXPECT_THAT(lines[1], ContainsRegex("^\\|[ :|-]+\\|$")) << "a rule, for Markdown";
  EXPECT_EQ(
      lines[2],
      "| listops | softmax | published |     1 | 36.00 | 35.23 | 37.10 |      -1.87 |    2.10 "
      "| 1 min 01 s | 1.50 GiB |       |");
  EXPECT_EQ(lines[0].size(), lines[2].size());
}

TEST(LraTable, WithoutATestScoreTheDifferenceIsOfTheValidSplitAndSaysSo) {
  const std::string table = lra_table({lra_run("lra/image/linear.tuned", 0.4)});
  EXPECT_THAT(table, AllOf(HasSubstr("| 40.00 |    - | 38.29 |"), HasSubstr("+1.71 v"),
                           HasSubstr("no test score")));
}

TEST(LraTable, SeedsAreOneLineWithTheirSpread) {
  Record second = lra_run("lra/text/band5.tuned", 0.62, 0.60);
  second.seed = 2;
  const auto lines = lines_of(lra_table({lra_run("lra/text/band5.tuned", 0.60, 0.60), second}));
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_THAT(lines[2], HasSubstr("|     2 | 61.00 +-1.41 | 60.00 +-0.00 |"));
}

TEST(LraTable, ARunThatIsNotFinishedSaysWhereItIsAndDoesNotCountBesideOnesThatAre) {
  Record cut = lra_run("lra/text/band5.tuned", 0.5);
  cut.seed = 2, cut.status = "interrupted", cut.result.steps = 700;
  EXPECT_THAT(lra_table({cut}), AllOf(HasSubstr("50.00"), HasSubstr("interrupted at step 700")));
  EXPECT_THAT(lra_table({lra_run("lra/text/band5.tuned", 0.6), cut}),
              AllOf(HasSubstr("| 60.00 |"), HasSubstr("interrupted at step 700, seed 2")));
}

TEST(LraTable, AFinishedRunOfFewerStepsThanItsConfigHasSaysHowMany) {
  Record record = lra_run("lra/text/band5.tuned", 0.5);
  record.config = {{"train.steps", "5000"}};
  EXPECT_THAT(lra_table({record}), Not(HasSubstr("steps |")));
  record.result.steps = 4900;
  EXPECT_THAT(lra_table({record}), HasSubstr("| 4900 of 5000 steps |"));
}

TEST(LraTable, RowsWithAllFiveTasksHaveAnAverage) {
  std::vector<Record> records;
  for (const std::string_view task : report::kLraTasks) {
    records.push_back(lra_run("lra/" + std::string(task) + "/softmax.tuned", 0.6, 0.5));
  }
  EXPECT_THAT(lra_table(records),
              ContainsRegex("average +\\| softmax \\| tuned +\\| +\\| 60.00 \\| "
                            "50.00 \\| 58.70 \\| +-8.70"));
  records.pop_back();
  EXPECT_THAT(lra_table(records), Not(HasSubstr("average")));
}

TEST(LraTable, SmallVariantsAreNotHeldAgainstThePaper) {
  EXPECT_THAT(lra_table({lra_run("tiny/lra/text/softmax.published", 0.9, 0.9)}),
              AllOf(HasSubstr("90.00"), Not(HasSubstr("64.17"))));
}

TEST(LraTable, OtherRunsAreLeftOut) { EXPECT_EQ(lra_table({lra_run("copy/softmax_128", 1)}), ""); }

}  // namespace
}  // namespace fmmformer::cli
