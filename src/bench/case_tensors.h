// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/attention_cases.h"
#include "fmmformer/attention/fmm_attention.h"

namespace fmmformer::bench {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// One attention call, ready to run, and what its gradients are taken of.
struct CaseTensors {
  AttentionInputs inputs;
  BlendWeights weights;
  FmmOptions options;
  std::vector<NamedTensor> leaves;  // q, k, v, near_weight, far_weight: all require gradients
  at::Tensor upstream;              // the gradient of the output, [batch, length, heads, value_dim]
};

constexpr uint64_t kTimedSeed = 1;  // of the values that are timed

/// Draws a case: values from N(0, 1) in double, from `seed`, rounded to `dtype`; the same values
/// for every layout. Blend weights lie around 0.5, a few below 0, and are fp32 beside bf16 and
/// fp16. Dead tokens hold NaN and inf. On a GPU the values are others, drawn in fp32: on_device()
/// takes the same ones there.
CaseTensors make_inputs(const AttentionCase& attention_case, c10::ScalarType dtype, uint64_t seed,
                        const c10::Device& device = c10::kCPU);

/// The same rounded values in double, for the reference: its gradients are then not rounded.
CaseTensors in_double(const CaseTensors& tensors);

/// The same values on another device.
CaseTensors on_device(const CaseTensors& tensors, const c10::Device& device);

/// The same values with q, k and v laid out anew: what a peer that wants [batch, heads, length,
/// dim] is given.
CaseTensors in_layout(const CaseTensors& tensors, Layout layout);

/// Anything with the operator's meaning: the operator, its reference, a peer.
using AttentionFunction =
    std::function<at::Tensor(const AttentionInputs&, const BlendWeights&, const FmmOptions&)>;

/// Runs forward and backward: out, then d_<leaf> for every leaf (zeros where the output does not
/// depend on it).
std::vector<NamedTensor> evaluate(const AttentionFunction& attention, const CaseTensors& tensors);

/// Forward and backward once, without keeping anything: what is timed. Leaves that the function
/// ignores are fine.
void run_forward_backward(const AttentionFunction& attention, const CaseTensors& tensors);

/// Forward once, without recording for backward.
void run_forward(const AttentionFunction& attention, const CaseTensors& tensors);

}  // namespace fmmformer::bench
