// SPDX-License-Identifier: Apache-2.0
#include "report/wikitext.h"

#include <gtest/gtest.h>

namespace fmmformer::report {
namespace {

TEST(Wikitext, ExperimentsOfThePapersTablesAreKnownByTheirNames) {
  ASSERT_TRUE(wikitext_name("wikitext103/fmm2_band20"));
  EXPECT_EQ(wikitext_name("wikitext103/fmm2_band20")->corpus, "wikitext103");
  EXPECT_EQ(wikitext_name("wikitext2/softmax")->row, "softmax");
  for (const char* other : {"softmax", "wikitext2", "wikitext2/large", "lra/softmax", ""}) {
    EXPECT_FALSE(wikitext_name(other)) << other;
  }
}

TEST(Wikitext, APresetThatWasTrainedOnAnotherTextIsNoLineOfTheTables) {
  Record run;
  run.name = "wikitext2/softmax";
  EXPECT_FALSE(wikitext_run(run));
  run.config = {{"model.dim", "128"}, {"model.vocabulary", "1368"}};
  EXPECT_FALSE(wikitext_run(run));
  run.config.back().second = "33278";
  ASSERT_TRUE(wikitext_run(run));
  EXPECT_EQ(wikitext_run(run)->row, "softmax");
  run.name = "wikitext103/softmax";
  EXPECT_FALSE(wikitext_run(run));
  run.config.back().second = "267735";
  EXPECT_TRUE(wikitext_run(run));
}

TEST(Wikitext, ThePapersOrderFromWorstToBestIsInItsNumbers) {
  const auto of = [](std::string_view row) {
    return *std::ranges::find(kPaperPerplexities, row, &PaperPerplexity::row);
  };
  const std::string_view order[] = {"band5",       "band20",      "linear", "fmm1_band5",
                                    "fmm1_band20", "fmm2_band20", "softmax"};
  for (size_t i = 1; i < std::size(order); ++i) {
    EXPECT_LT(of(order[i]).valid, of(order[i - 1]).valid) << order[i];
    EXPECT_LT(of(order[i]).test, of(order[i - 1]).test) << order[i];
  }
  for (const PaperPerplexity& row : kPaperPerplexities) EXPECT_GT(row.test, row.valid) << row.row;
}

}  // namespace
}  // namespace fmmformer::report
