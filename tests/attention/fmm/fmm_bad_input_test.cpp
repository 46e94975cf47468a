// SPDX-License-Identifier: Apache-2.0
// A user's mistake gets an error that names the function, the value, what is allowed and the way
// out.
#include <gmock/gmock.h>
#include <torch/types.h>

#include <limits>

#include "fmmformer/attention/fmm_attention.h"

namespace fmmformer {
namespace {

using testing::AllOf, testing::HasSubstr;

const FmmOptions kOptions{
    .window = Window{2, 0}, .causal = true, .feature_maps = {FeatureMap::kElu}};

at::Tensor tensor(at::IntArrayRef shape = {2, 5, 3, 8}) { return torch::randn(shape); }

std::string error_of(const AttentionInputs& inputs, const BlendWeights& weights = {},
                     const FmmOptions& options = kOptions) {
  try {
    fmm_attention(inputs, weights, options);
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(FmmAttentionErrors, NameAWrongRank) {
  EXPECT_THAT(error_of({tensor({2, 5, 8}), tensor({2, 5, 8}), tensor({2, 5, 8})}),
              AllOf(HasSubstr("fmm_attention: q has 3 dimensions"), HasSubstr("allowed is 4")));
}
TEST(FmmAttentionErrors, NameShapesThatDoNotAgree) {
  EXPECT_THAT(error_of({tensor(), tensor({2, 6, 3, 8}), tensor()}),
              HasSubstr("k has shape [2, 6, 3, 8]"));
  EXPECT_THAT(error_of({tensor(), tensor(), tensor({2, 5, 4, 8})}),
              HasSubstr("v has shape [2, 5, 4, 8]"));
}
TEST(FmmAttentionErrors, NameTypesThatDoNotAgree) {
  EXPECT_THAT(error_of({tensor(), tensor().to(torch::kDouble), tensor()}),
              AllOf(HasSubstr("k is of type Double"), HasSubstr("q is Float"), HasSubstr(".to()")));
  const at::Tensor integers = torch::ones({2, 5, 3, 8}, torch::kLong);
  EXPECT_THAT(error_of({integers, integers, integers}),
              HasSubstr("allowed are fp64, fp32, bf16, fp16"));
}
TEST(FmmAttentionErrors, NameAHeadDimensionOutOfRange) {
  for (const int64_t dim : {0, 257}) {
    const at::Tensor x = tensor({1, 4, 1, dim});
    EXPECT_THAT(error_of({x, x, x}),
                AllOf(HasSubstr("is " + std::to_string(dim)), HasSubstr("1..256")));
  }
}
TEST(FmmAttentionErrors, NameALastDimensionThatIsNotContiguous) {
  const at::Tensor strided = tensor({2, 5, 3, 16}).slice(3, 0, 16, 2);
  EXPECT_THAT(error_of({strided, tensor(), tensor()}),
              AllOf(HasSubstr("stride 2"), HasSubstr(".contiguous()")));
}
TEST(FmmAttentionErrors, NameAMaskThatIsNotBoolOrDoesNotFit) {
  EXPECT_THAT(error_of({tensor(), tensor(), tensor(), torch::ones({2, 5})}),
              HasSubstr("token_mask is of type Float"));
  EXPECT_THAT(error_of({tensor(), tensor(), tensor(), torch::ones({2, 6}, torch::kBool)}),
              HasSubstr("token_mask has shape [2, 6]"));
}
TEST(FmmAttentionErrors, NameWeightsThatDoNotBroadcast) {
  EXPECT_THAT(
      error_of({tensor(), tensor(), tensor()}, {.near_weight = torch::ones({7})}),
      AllOf(HasSubstr("near_weight has shape [7]"), HasSubstr("[heads, value_dim] = [3, 8]")));
  EXPECT_THAT(error_of({tensor(), tensor(), tensor()}, {.far_weight = torch::ones({2, 3, 8})}),
              HasSubstr("far_weight has shape [2, 3, 8]"));
}
TEST(FmmAttentionErrors, NameOptionsOutOfRange) {
  const AttentionInputs inputs{tensor(), tensor(), tensor()};
  FmmOptions options = kOptions;
  options.window = Window{-1, 0};
  EXPECT_THAT(error_of(inputs, {}, options), HasSubstr("window is (-1, 0)"));
  options = kOptions;
  options.eps = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(error_of(inputs, {}, options), HasSubstr("eps is nan"));
  options = kOptions;
  options.near_dropout = 1.0;
  EXPECT_THAT(error_of(inputs, {}, options), HasSubstr("near_dropout is 1"));
  options.near_dropout = 0.5;
  EXPECT_THAT(error_of(inputs, {}, options), HasSubstr("there is no dropout_seed"));
  options = kOptions;
  options.feature_maps.assign(9, FeatureMap::kElu);
  EXPECT_THAT(error_of(inputs, {}, options), HasSubstr("9 feature maps"));
}
TEST(FmmAttentionErrors, NameASequenceWithoutTokens) {
  const at::Tensor empty = tensor({2, 0, 3, 8});
  EXPECT_THAT(error_of({empty, empty, empty}), HasSubstr("length is 0"));
}

}  // namespace
}  // namespace fmmformer
