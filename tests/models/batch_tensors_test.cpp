// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/models/batch_tensors.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace fmmformer {
namespace {

TEST(BatchTensors, HoldTheBatch) {
  const Batch batch{.size = 2,
                    .length = 3,
                    .tokens = {1, 2, 3, 4, 5, 6},
                    .token_mask = {1, 1, 0, 1, 1, 1},
                    .targets = {7, 8, 9, 10, 11, 12},
                    .target_mask = {0, 1, 1, 0, 0, 1}};
  const BatchTensors tensors = batch_tensors(batch, at::kCPU);
  EXPECT_TRUE(torch::equal(tensors.inputs.tokens, torch::arange(1, 7).view({2, 3})));
  EXPECT_EQ(tensors.inputs.token_mask->scalar_type(), torch::kBool);
  EXPECT_FALSE((*tensors.inputs.token_mask)[0][2].item<bool>());
  EXPECT_FALSE(tensors.inputs.other_tokens.defined());
  EXPECT_TRUE(torch::equal(tensors.targets, torch::arange(7, 13).view({2, 3})));
  EXPECT_EQ(tensors.target_mask->sum().item<int64_t>(), 3);
}

TEST(BatchTensors, ClassesAreOneAnExample) {
  const Batch batch{.size = 2,
                    .length = 2,
                    .tokens = {1, 2, 3, 4},
                    .other_tokens = {5, 6, 7, 8},
                    .targets = {1, 0}};
  const BatchTensors tensors = batch_tensors(batch, at::kCPU);
  EXPECT_EQ(tensors.targets.sizes(), (std::vector<int64_t>{2}));
  EXPECT_FALSE(tensors.inputs.token_mask);
  EXPECT_EQ(tensors.inputs.other_tokens[1][1].item<int64_t>(), 8);
}

TEST(BatchTensors, WhatFillsAnExampleUpIsToldByItsMasks) {
  const Batch plain{.size = 1, .length = 3, .tokens = {1, 0, 0}, .targets = {0}};
  EXPECT_EQ(plain.real_length(), 3);  // 0 may be a pixel
  const Batch masked{
      .size = 1, .length = 3, .tokens = {1, 2, 0}, .token_mask = {1, 1, 0}, .targets = {0}};
  EXPECT_EQ(masked.real_length(), 2);
  // Of a text: the token 0 is a word as well, and the last target that counts has the last input.
  Batch text{.size = 1,
             .length = 4,
             .tokens = {5, 0, 0, 0},
             .targets = {0, 6, 0, 0},
             .target_mask = {1, 1, 0, 0}};
  EXPECT_EQ(text.real_length(), 2);
  text.tokens[2] = 7;  // read, though nothing that it predicts counts
  EXPECT_EQ(text.real_length(), 3);
  EXPECT_EQ(Batch({.size = 1, .length = 2, .tokens = {0, 0}, .token_mask = {0, 0}, .targets = {0}})
                .real_length(),
            1);
}

TEST(BatchTensors, AnArrayOfTheWrongSizeIsAnError) {
  EXPECT_THROW(
      batch_tensors({.size = 2, .length = 3, .tokens = {1, 2}, .targets = {0, 0}}, at::kCPU),
      c10::ValueError);
}

}  // namespace
}  // namespace fmmformer
