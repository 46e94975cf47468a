// SPDX-License-Identifier: Apache-2.0
#include "cli/token_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/temporary_folder.h"
#include "fmmformer/core/safetensors.h"

namespace fmmformer::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class TokenInputs : public testing::Test {
 protected:
  std::filesystem::path file(const std::string& name, const std::string& text) const {
    std::ofstream(folder_.path() / name) << text;
    return folder_.path() / name;
  }
  std::string error_of(const std::string& text) const {
    try {
      check_token_input(read_token_input(file("x.jsonl", text)), {.vocabulary = 5, .longest = 3});
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "no error";
  }
  TemporaryFolder folder_;
};

TEST_F(TokenInputs, LinesAreObjectsOrListsAndEmptyOnesDoNotCount) {
  const auto inputs =
      read_token_input(file("x.jsonl", "{\"tokens\": [1, 2], \"other_tokens\": [3]}\n\n[4]\n"));
  ASSERT_EQ(inputs.size(), 2u);
  EXPECT_EQ(inputs[0].tokens, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(inputs[0].other_tokens, (std::vector<int64_t>{3}));
  EXPECT_EQ(inputs[1].tokens, (std::vector<int64_t>{4}));
  EXPECT_THAT(inputs[1].where, HasSubstr("x.jsonl:3"));
}

TEST_F(TokenInputs, ATensorOfEitherIntegerTypeIsOneExampleARow) {
  const int32_t narrow[] = {1, 2, 3, 4};
  write_safetensors(folder_.path() / "x.safetensors",
                    {{"tokens", {"I32", {2, 2}, std::as_bytes(std::span(narrow))}}});
  const auto inputs = read_token_input(folder_.path() / "x.safetensors");
  ASSERT_EQ(inputs.size(), 2u);
  EXPECT_EQ(inputs[1].tokens, (std::vector<int64_t>{3, 4}));
}

TEST_F(TokenInputs, MistakesNameTheLineAndWhatIsAllowed) {
  EXPECT_THAT(error_of("[1]\n[1, 5]\n"), AllOf(HasSubstr("x.jsonl:2"), HasSubstr("0..4")));
  EXPECT_THAT(error_of("[1, 1, 1, 1]\n"), AllOf(HasSubstr("4 tokens"), HasSubstr("up to 3")));
  EXPECT_THAT(error_of("[1, 1.5]\n"), HasSubstr("integers"));
  EXPECT_THAT(error_of("{\"ids\": [1]}\n"), HasSubstr("has no \"tokens\""));
  EXPECT_THAT(error_of("nonsense\n"), HasSubstr("no JSON"));
  EXPECT_THAT(error_of("[]\n"), HasSubstr("has no tokens"));
  EXPECT_THAT(error_of(""), HasSubstr("no examples"));
}

}  // namespace
}  // namespace fmmformer::cli
