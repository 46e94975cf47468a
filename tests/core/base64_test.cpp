// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/core/base64.h"

#include <gtest/gtest.h>

namespace fmmformer {
namespace {

std::vector<uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

TEST(Base64, TextsOfTheStandardComeOutAsPrintedThere) {
  for (const auto& [plain, encoded] : {std::pair{"", ""},
                                       {"f", "Zg=="},
                                       {"fo", "Zm8="},
                                       {"foo", "Zm9v"},
                                       {"foob", "Zm9vYg=="},
                                       {"foobar", "Zm9vYmFy"}}) {
    EXPECT_EQ(base64_encoded(bytes_of(plain)), encoded);
    EXPECT_EQ(base64_decoded(encoded), bytes_of(plain));
  }
}

TEST(Base64, EveryByteSurvives) {
  std::vector<uint8_t> all(256);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint8_t>(i);
  EXPECT_EQ(base64_decoded(base64_encoded(all)), all);
}

TEST(Base64, WhatIsNoBase64IsRefused) {
  for (const auto* text : {"Zg=", "Z===", "Zg==Zg==", "Z*==", "Zm9", "=Zm9", "Zg=v"}) {
    EXPECT_FALSE(base64_decoded(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace fmmformer
