// SPDX-License-Identifier: Apache-2.0
#include "attention/fmm/fmm_step.h"

#include <ATen/ATen.h>

namespace fmmformer {
namespace {

using at::Tensor;

void check_part(const char* name, const Tensor& tensor, at::IntArrayRef shape, at::ScalarType type,
                const at::Device& device) {
  TORCH_CHECK_VALUE(tensor.sizes() == shape && tensor.scalar_type() == type,
                    "fmm_attention_step: the state's ", name, " has shape ", tensor.sizes(),
                    " and type ", tensor.scalar_type(), "; this call needs ", shape, " and ", type,
                    "; give the state that prefill made with the same options and types");
  TORCH_CHECK_VALUE(tensor.is_contiguous() && tensor.device() == device,
                    "fmm_attention_step: the state's ", name, " must be contiguous and on ", device,
                    "; use state.to() or clone()");
}

void check_state(const Problem& problem, const Tensor& q, const FmmState& state) {
  const int64_t batch = problem.batch, heads = problem.heads, maps = problem.feature_maps();
  const int64_t head_dim = problem.head_dim, value_dim = problem.value_dim;
  const int64_t left = problem.options.window ? problem.options.window->left : 0;
  const at::ScalarType type = q.scalar_type(), sums = accumulation_type(type);
  const at::Device device = q.device();
  check_part("keys", state.keys, {batch, left, heads, head_dim}, type, device);
  check_part("values", state.values, {batch, left, heads, value_dim}, type, device);
  check_part("live", state.live, {batch, left}, at::kBool, device);
  check_part("far_sums", state.far_sums, {batch, heads, maps, head_dim, value_dim}, sums, device);
  check_part("far_key_sums", state.far_key_sums, {batch, heads, maps, head_dim}, sums, device);
  check_part("position", state.position, {1}, at::kLong, device);
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
