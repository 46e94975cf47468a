// SPDX-License-Identifier: Apache-2.0
#include "attention/fmm/fmm_step.h"

#include <ATen/ATen.h>

namespace fmmformer {
namespace {

using at::Tensor;

void check_state(const Problem& problem, const Tensor& q, const FmmState& state) {
  const int64_t left = problem.options.window ? problem.options.window->left : 0;
  const at::ScalarType sums = accumulation_type(q.scalar_type());
  const std::vector<std::pair<
      const char*, std::pair<const Tensor*, std::pair<std::vector<int64_t>, at::ScalarType>>>>
      wanted = {
          {"keys",
           {&state.keys,
            {{problem.batch, left, problem.heads, problem.head_dim}, q.scalar_type()}}},
          {"values",
           {&state.values,
            {{problem.batch, left, problem.heads, problem.value_dim}, q.scalar_type()}}},
          {"live", {&state.live, {{problem.batch, left}, at::kBool}}},
          {"far_sums",
           {&state.far_sums,
            {{problem.batch, problem.heads, problem.feature_maps(), problem.head_dim,
              problem.value_dim},
             sums}}},
          {"far_key_sums",
           {&state.far_key_sums,
            {{problem.batch, problem.heads, problem.feature_maps(), problem.head_dim}, sums}}},
          {"position", {&state.position, {{1}, at::kLong}}}};
  for (const auto& [name, entry] : wanted) {
    const Tensor& tensor = *entry.first;
    const auto& [shape, type] = entry.second;
    TORCH_CHECK_VALUE(tensor.sizes() == at::IntArrayRef(shape) && tensor.scalar_type() == type,
                      "fmm_attention_step: the state's ", name, " has shape ", tensor.sizes(),
                      " and type ", tensor.scalar_type(), "; this call needs ",
                      at::IntArrayRef(shape), " and ", type,
                      "; give the state that prefill made with the same options and types");
    TORCH_CHECK_VALUE(tensor.is_contiguous() && tensor.device() == q.device(),
                      "fmm_attention_step: the state's ", name, " must be contiguous and on ",
                      q.device(), "; use state.to() or clone()");
  }
}

}  // namespace

StepCall checked_step(const AttentionInputs& token, const BlendWeights& weights,
                      const FmmState& state, FmmOptions options) {
  TORCH_CHECK_VALUE(token.q.dim() == 3 && token.k.dim() == 3 && token.v.dim() == 3,
                    "fmm_attention_step: q, k, v have ", token.q.dim(), ", ", token.k.dim(), ", ",
                    token.v.dim(), " dimensions; allowed is 3, [batch, heads, dim]: one token");
  TORCH_CHECK_VALUE(!token.token_mask || token.token_mask->dim() == 1,
                    "fmm_attention_step: token_mask has shape ", token.token_mask->sizes(),
                    "; allowed is [batch]");
  const auto as_sequence = [](const Tensor& x) { return x.unsqueeze(1); };
  AttentionInputs sequence{
      .q = as_sequence(token.q), .k = as_sequence(token.k), .v = as_sequence(token.v)};
  if (token.token_mask) sequence.token_mask = as_sequence(*token.token_mask);
  options.near_dropout = 0.0;  // decoding is inference
  Problem problem = checked_problem("fmm_attention_step", sequence, weights, options);
  problem.options.window = options.window;  // not cut to this length of 1: the state holds the past
  check_state(problem, token.q, state);
  return {problem, token, weights, state};
}

}  // namespace fmmformer
