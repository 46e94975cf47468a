// SPDX-License-Identifier: Apache-2.0
#include "cli/live_line.h"

#include <gtest/gtest.h>

namespace fmmformer::cli {
namespace {

TEST(LiveLine, ShowsAsManyWholePartsAsTheTerminalHasRoomFor) {
  const std::string line = "step 10/300  loss 1.9611  63 k tokens/s";
  EXPECT_EQ(fitted_line(line, 80), line);
  EXPECT_EQ(fitted_line(line, 40), line);  // 39 letters, and the last column stays free
  EXPECT_EQ(fitted_line(line, 39), "step 10/300  loss 1.9611");
  EXPECT_EQ(fitted_line(line, 25), "step 10/300  loss 1.9611");
  EXPECT_EQ(fitted_line(line, 24), "step 10/300");
  EXPECT_EQ(fitted_line(line, 6), "step ");
  EXPECT_EQ(fitted_line("", 40), "");
}

TEST(LiveLine, IsSilentInAPipe) {
  testing::internal::CaptureStderr();
  const LiveLine live;
  live.show("something");
  live.clear();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace fmmformer::cli
