// SPDX-License-Identifier: Apache-2.0
#include "train/step_inputs.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "train/gpu_arithmetic.h"
#include "train/torch_error.h"

namespace fmmformer::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Batch language_batch(int64_t first) {
  Batch batch{.size = 2, .length = 3};
  for (int64_t i = 0; i < 6; ++i) {
    batch.tokens.push_back(first + i);
    batch.targets.push_back(first + i + 1);
    batch.target_mask.push_back(i % 2);
  }
  return batch;
}

Batch pair_batch() {
  return {.size = 2,
          .length = 2,
          .tokens = {1, 2, 3, 4},
          .token_mask = {1, 1, 1, 0},
          .other_tokens = {5, 6, 7, 8},
          .other_token_mask = {1, 0, 1, 1},
          .targets = {0, 1}};
}

StepInputs written(const StepLayout& layout, const StepBatches& batches,
                   const StepNumbers& numbers) {
  const at::Tensor block = at::empty({layout.bytes()}, at::kByte);
  layout.write(batches, numbers, block.mutable_data_ptr());
  return layout.views(block);
}

void expect_same(const BatchTensors& a, const BatchTensors& b) {
  EXPECT_TRUE(at::equal(a.inputs.tokens, b.inputs.tokens));
  EXPECT_TRUE(at::equal(a.targets, b.targets));
  const auto same = [](const std::optional<at::Tensor>& x, const std::optional<at::Tensor>& y) {
    ASSERT_EQ(x.has_value(), y.has_value());
    if (x) {
      EXPECT_TRUE(at::equal(*x, *y));
    }
  };
  same(a.inputs.token_mask, b.inputs.token_mask);
  same(a.inputs.other_token_mask, b.inputs.other_token_mask);
  same(a.target_mask, b.target_mask);
  ASSERT_EQ(a.inputs.other_tokens.defined(), b.inputs.other_tokens.defined());
  if (a.inputs.other_tokens.defined()) {
    EXPECT_TRUE(at::equal(a.inputs.other_tokens, b.inputs.other_tokens));
  }
}

TEST(StepInputs, HoldWhatTheBatchesAndNumbersSay) {
  for (const StepBatches& batches :
       {StepBatches{language_batch(0), language_batch(7)}, StepBatches{pair_batch()}}) {
    StepNumbers numbers{.counted = 6, .update = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 0}}};
    for (size_t i = 0; i < batches.size(); ++i) {
      numbers.dropout_seeds.push_back(-1 - static_cast<int64_t>(i));
    }
    const StepInputs inputs = written(StepLayout(batches), batches, numbers);
    ASSERT_EQ(inputs.parts.size(), batches.size());
    for (size_t i = 0; i < batches.size(); ++i) {
      expect_same(inputs.parts[i], batch_tensors(batches[i], at::kCPU));
      EXPECT_EQ(inputs.dropout_seeds[i].item<int64_t>(), numbers.dropout_seeds[i]);
    }
    EXPECT_EQ(inputs.counted.item<float>(), 6);
    EXPECT_EQ(inputs.counted.dim(), 0);
    for (int i = 0; i < kFactorCount; ++i) {
      EXPECT_EQ(inputs.update[i].item<double>(), numbers.update.value[i]);
    }
  }
}

TEST(StepInputs, TheLayoutFollowsFromTheShapesAlone) {
  EXPECT_EQ(StepLayout({language_batch(0)}), StepLayout({language_batch(5)}));
  Batch without_mask = language_batch(0);
  without_mask.target_mask.clear();
  EXPECT_NE(StepLayout({language_batch(0)}), StepLayout({without_mask}));
  EXPECT_NE(StepLayout({language_batch(0)}), StepLayout({language_batch(0), language_batch(0)}));
  EXPECT_EQ(StepLayout({language_batch(0), language_batch(0)}).text(), "2 x [2, 3]");
}

TEST(StepInputs, AnArrayOfTheWrongLengthIsNamed) {
  Batch batch = language_batch(0);
  batch.targets.resize(5);
  EXPECT_THAT(torch_error_of([&] { StepLayout({batch}); }),
              AllOf(HasSubstr("targets has 5"), HasSubstr("wanted 6")));
}

TEST(GpuArithmetic, Fp32ProductsAreExactUnlessTf32IsAskedFor) {
  set_gpu_arithmetic(/*tf32=*/true);
  EXPECT_TRUE(at::globalContext().allowTF32CuBLAS());
  set_gpu_arithmetic(/*tf32=*/false);
  EXPECT_FALSE(at::globalContext().allowTF32CuBLAS());
}

}  // namespace
}  // namespace fmmformer::train
