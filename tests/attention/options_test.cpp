// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/attention/options.h"

#include <gmock/gmock.h>

namespace fmmformer {
namespace {

TEST(Bandwidth, KeepsThePapersDiagonals) {
  EXPECT_EQ(window_from_bandwidth(5, /*causal=*/true), (Window{4, 0}));   // 5 diagonals
  EXPECT_EQ(window_from_bandwidth(5, /*causal=*/false), (Window{4, 4}));  // 9 diagonals
  EXPECT_EQ(window_from_bandwidth(1, /*causal=*/false), (Window{0, 0}));
  EXPECT_EQ(window_from_bandwidth(0, /*causal=*/true), std::nullopt);
}

TEST(Bandwidth, RefusesNegativeOnesByName) {
  EXPECT_THAT([] { window_from_bandwidth(-3, true); },
              testing::ThrowsMessage<std::invalid_argument>(testing::HasSubstr("bandwidth is -3")));
}

TEST(FeatureMapNames, GoBothWaysAndSuggestTheNearest) {
  for (const std::string& name : enum_names<FeatureMap>()) {
    EXPECT_EQ(enum_name(enum_from_name<FeatureMap>(name)), name);
  }
  EXPECT_THAT([] { enum_from_name<FeatureMap>("elu_flop"); },
              testing::ThrowsMessage<std::invalid_argument>(
                  testing::HasSubstr("did you mean 'elu_flip'?")));
}

}  // namespace
}  // namespace fmmformer
