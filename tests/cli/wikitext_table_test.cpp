// SPDX-License-Identifier: Apache-2.0
#include "cli/wikitext_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/lines_of.h"

namespace fmmformer::cli {
namespace {

using report::Record;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Record wikitext_run(const std::string& name, double valid, double test) {
  Record record{.name = name, .seed = 1, .status = "finished", .parameters = 13773183};
  record.result = {.best_metric = valid,
                   .test_metric = test,
                   .steps = 8500,
                   .seconds = 121,
                   .seconds_per_step = 0.0142,
                   .peak_bytes = 3.5 * 1024 * 1024 * 1024};
  return record;
}

TEST(WikitextTable, HasOursAndThePapersOrderSideBySide) {
  const auto lines = lines_of(wikitext_table(
      {wikitext_run("wikitext2/linear", 150, 140), wikitext_run("wikitext2/softmax", 130, 120),
       wikitext_run("wikitext2/band5", 141.5, 139.25)},
      "wikitext2"));
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_THAT(lines[0], HasSubstr("paper on WikiText-103: valid"));
  EXPECT_THAT(lines[2], AllOf(HasSubstr("| softmax |"), HasSubstr(" 130.00 | 120.00 |     1 |"),
                              HasSubstr(" 33.15 |       34.29 |            1 |"),
                              HasSubstr(" 14.20 | 2 min 01 s | 3.50 GiB |")));
  EXPECT_THAT(lines[3], AllOf(HasSubstr("| linear "), HasSubstr(" 140.00 |     3 |"),
                              HasSubstr(" 38.40 |            2 |")));
  EXPECT_THAT(lines[4], AllOf(HasSubstr("| band5 "), HasSubstr(" 139.25 |     2 |"),
                              HasSubstr(" 44.76 |            3 |")));
}

TEST(WikitextTable, SeedsAreOneLineWithTheirSpread) {
  const std::string table = wikitext_table(
      {wikitext_run("wikitext2/linear", 150, 140), wikitext_run("wikitext2/linear", 152, 142)},
      "wikitext2");
  EXPECT_THAT(table, AllOf(HasSubstr("151.00 +-1.41"), HasSubstr("141.00 +-1.41")));
}

TEST(WikitextTable, HasRunsOfItsTextAlone) {
  EXPECT_EQ(wikitext_table({wikitext_run("wikitext2/linear", 1, 1)}, "wikitext103"), "");
  const std::string table = wikitext_table(
      {wikitext_run("wikitext103/linear", 38, 39), wikitext_run("lra/x/y.z", 1, 1)}, "wikitext103");
  EXPECT_THAT(table, AllOf(HasSubstr("paper: valid"), Not(HasSubstr("WikiText-103"))));
}

TEST(WikitextTable, ARunThatIsNotThroughSaysHowFarItIs) {
  Record cut = wikitext_run("wikitext2/linear", 150, report::kUnknown);
  cut.status = "interrupted";
  cut.result.steps = 70;
  EXPECT_THAT(wikitext_table({cut}, "wikitext2"),
              AllOf(HasSubstr("interrupted at step 70"), HasSubstr("|    - |     - |")));
}

}  // namespace
}  // namespace fmmformer::cli
