// SPDX-License-Identifier: Apache-2.0
// The named cases of fast-weight attention, for tests, timing and `fmmformer verify`.
#pragma once

#include <string_view>
#include <vector>

#include "bench/case_tensors.h"
#include "fmmformer/attention/fast_weight_attention.h"

namespace fmmformer::bench {

struct FastWeightCase {
  AttentionCase
      attention;  // name, shapes, layout, mask, types, tags; of the options those that both
                  // operators have, with one feature map. There is no band and no weight.
  FastWeightNormaliser normaliser = FastWeightNormaliser::kOutput;

  const std::string& name() const { return attention.name; }
};

/// All cases, in the order in which they are shown; names are unique and begin with "fast_weight_".
const std::vector<FastWeightCase>& fast_weight_cases();
std::vector<FastWeightCase> fast_weight_cases_with_tag(CaseTag tag);

/// "1x2048x8x64 output": batch x length x heads x head_dim, then the normaliser.
std::string shape_text(const FastWeightCase& one);

/// One call, ready to run. The leaves are q, k, v and beta.
struct FastWeightTensors {
  FastWeightInputs inputs;
  FastWeightOptions options;
  std::vector<NamedTensor> leaves;
  at::Tensor upstream;
};

/// Draws a case as make_inputs() does for an AttentionCase; beta is the sigmoid of N(0, 1).
FastWeightTensors make_inputs(const FastWeightCase& one, c10::ScalarType dtype, uint64_t seed,
                              const c10::Device& device = c10::kCPU);

/// The same rounded values in double, for the reference: its gradients are then not rounded.
FastWeightTensors in_double(const FastWeightTensors& tensors);

/// The same values on another device.
FastWeightTensors on_device(const FastWeightTensors& tensors, const c10::Device& device);

/// Anything with the operator's meaning: the operator, its reference, a peer.
using FastWeightFunction =
    std::function<at::Tensor(const FastWeightInputs&, const FastWeightOptions&)>;

/// Runs forward and backward: out, then d_<leaf> for every leaf.
std::vector<NamedTensor> evaluate(const FastWeightFunction& attention,
                                  const FastWeightTensors& tensors);

}  // namespace fmmformer::bench
