// SPDX-License-Identifier: Apache-2.0
#include "report/lra.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fmmformer::report {
namespace {

TEST(Lra, NamesOfExperimentsAreTakenApartAndPutTogether) {
  const LraName name{.task = "text", .row = "fmm2_band5_1024", .recipe = "published"};
  EXPECT_EQ(lra_name("lra/text/fmm2_band5_1024.published"), name);
  EXPECT_EQ(name.text(), "lra/text/fmm2_band5_1024.published");
  const LraName tiny{.task = "image", .row = "linear", .recipe = "tuned", .tiny = true};
  EXPECT_EQ(lra_name("tiny/lra/image/linear.tuned"), tiny);
  EXPECT_EQ(tiny.text(), "tiny/lra/image/linear.tuned");
  EXPECT_EQ(tiny.preset(), "lra/image/linear.tuned");
}

TEST(Lra, OtherNamesAreNone) {
  for (const char* other : {"", "copy/softmax_128", "lra/", "lra/text", "lra/text/softmax",
                            "lra/chess/softmax.tuned", "lra.x/text"}) {
    EXPECT_EQ(lra_name(other), std::nullopt) << other;
  }
}

TEST(Lra, ThePaperHasANumberForEveryCellAndItsAveragesAreTheirs) {
  for (const std::string_view row : kLraRows) {
    double sum = 0;
    for (const std::string_view task : kLraTasks) sum += paper_accuracy(task, row).value();
    EXPECT_NEAR(sum / 5, paper_average(row).value(), 0.006) << row;  // two digits, rounded
  }
  EXPECT_EQ(paper_accuracy("listops", "fmm2_band5"), 36.74);
  EXPECT_EQ(paper_accuracy("text", "softmax_1024"), 64.17);
  EXPECT_EQ(paper_accuracy("chess", "softmax"), std::nullopt);
  EXPECT_EQ(paper_accuracy("text", "fmm9"), std::nullopt);
  EXPECT_EQ(paper_average("fmm9"), std::nullopt);
}

}  // namespace
}  // namespace fmmformer::report
