// SPDX-License-Identifier: Apache-2.0
#include "bench/plain_torch.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "bench/case_tensors.h"
#include "fmmformer/attention/fmm_reference.h"

namespace fmmformer::bench {
namespace {

TEST(PlainTorch, InDoubleEqualsTheReferenceOnEveryCaseWithoutDropout) {
  for (const AttentionCase& one : cases_with_tag(CaseTag::kQuick)) {
    if (one.near_dropout > 0 || one.length > 300) continue;
    // torch's elu(x) + 1 has few digits where x is far below 0.
    if (one.extreme_query != 0) continue;
    const CaseTensors tensors = make_inputs(one, c10::kDouble, 4);
    const std::vector<NamedTensor> plain = evaluate(plain_torch_attention, tensors);
    const std::vector<NamedTensor> exact = evaluate(fmm_attention_reference, tensors);
    for (size_t i = 0; i < plain.size(); ++i) {
      const double scale = std::max(1.0, exact[i].tensor.abs().max().item<double>());
      const double error = (plain[i].tensor - exact[i].tensor).abs().max().item<double>();
      EXPECT_LE(error, 1e-10 * scale) << one.name << " " << plain[i].name;
    }
  }
}

TEST(PlainTorch, DropoutKeepsTheMean) {
  AttentionCase c = case_named("dropout_causal");
  c.feature_maps = {};
  const CaseTensors tensors = make_inputs(c, c10::kDouble, 4);
  const at::Tensor dropped =
      plain_torch_attention(tensors.inputs, tensors.weights, tensors.options);
  FmmOptions without = tensors.options;
  without.near_dropout = 0;
  const at::Tensor whole = plain_torch_attention(tensors.inputs, tensors.weights, without);
  EXPECT_FALSE(at::equal(dropped, whole));
  EXPECT_NEAR((dropped - whole).mean().item<double>(), 0, 0.02);
}

}  // namespace
}  // namespace fmmformer::bench
