// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/attention/full_attention.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "fmmformer/attention/fmm_reference.h"

namespace fmmformer {
namespace {

TEST(FullAttention, EqualsABandWiderThanTheSequence) {
  const auto draw = [] { return torch::randn({2, 11, 3, 4}, torch::kDouble); };
  AttentionInputs inputs{draw(), draw(), draw()};
  for (const bool masked : {false, true}) {
    if (masked) {
      inputs.token_mask = torch::arange(11).remainder(3).ne(1).expand({2, 11});
      inputs.k.select(1, 1).fill_(std::nan(""));
    }
    for (const bool causal : {false, true}) {
      const at::Tensor expected =
          fmm_attention_reference(inputs, {}, {.window = Window{20, 20}, .causal = causal});
      EXPECT_TRUE(at::allclose(full_attention(inputs, {.causal = causal}), expected))
          << masked << causal;
    }
  }
}

}  // namespace
}  // namespace fmmformer
