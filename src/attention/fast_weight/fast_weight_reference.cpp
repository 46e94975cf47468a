// SPDX-License-Identifier: Apache-2.0
// The definition of fast-weight attention, token by token. Slow on purpose: read it beside the
// header.
#include "fmmformer/attention/fast_weight_reference.h"

#include <ATen/ATen.h>

#include "attention/fast_weight/fast_weight_problem.h"
#include "attention/reference_features.h"

namespace fmmformer {
namespace {

using at::Tensor;

// <a, b> over the last dimension, which stays.
Tensor row_product(const Tensor& a, const Tensor& b) { return (a * b).sum(-1, /*keepdim=*/true); }

// W^T x, for W [.., D, Dv] and x [.., D].
Tensor read(const Tensor& memory, const Tensor& x) { return (memory * x.unsqueeze(-1)).sum(-2); }

struct Token {
  Tensor x, y, v, beta;  // features of key and query [B, H, D]; [B, H, Dv]; [B, H, 1]
};

struct State {
  Tensor memory;    // W: [B, H, D, Dv]
  Tensor key_sums;  // z: [B, H, D]
  Tensor started;   // bool [B, 1, 1]: whether a real token was seen
};

Tensor what_is_written(const Token& token, const State& state, const FastWeightOptions& options) {
  const Tensor retrieved = read(state.memory, token.x);
  if (options.normaliser != FastWeightNormaliser::kOutputAndKey)
    return token.beta * (token.v - retrieved);
  const Tensor overlap = at::where(state.started, row_product(token.x, state.key_sums), 1.0);
  const Tensor norm = reference_divisor(options.feature_map, options.eps, overlap);
  return token.beta * overlap / norm * (token.v - retrieved / norm);
}

Tensor what_is_read(const Token& token, const State& state, const FastWeightOptions& options) {
  const Tensor retrieved = options.far_scale * read(state.memory, token.y);
  if (options.normaliser == FastWeightNormaliser::kNone) return retrieved;
  return retrieved /
         reference_divisor(options.feature_map, options.eps, row_product(token.y, state.key_sums));
}

}  // namespace

Tensor fast_weight_attention_reference(const FastWeightInputs& inputs,
                                       const FastWeightOptions& options) {
  const FastWeightProblem problem =
      checked_problem("fast_weight_attention_reference", inputs, options);
  const auto on_device = at::TensorOptions().device(inputs.q.device()).dtype(at::kDouble);
  const Tensor mask = inputs.token_mask.value_or(
      at::ones({problem.batch, problem.length}, on_device.dtype(at::kBool)));
  State state{.memory = at::zeros(
                  {problem.batch, problem.heads, problem.head_dim, problem.value_dim}, on_device),
              .key_sums = at::zeros({problem.batch, problem.heads, problem.head_dim}, on_device),
              .started = at::zeros({problem.batch, 1, 1}, on_device.dtype(at::kBool))};
  // A dead token is replaced by zeros first, so that nothing it holds, not even NaN, takes part.
  const Tensor all_live = mask.view({problem.batch, problem.length, 1, 1});
  const auto prepared = [&](const Tensor& x) {
    return at::where(all_live, x.to(at::kDouble), 0.0);
  };
  const auto features = [&](const Tensor& x) {
    return at::where(
        all_live, reference_features(options.feature_map, options.unit_features, prepared(x)), 0.0);
  };
  const auto x = features(inputs.k).unbind(1), y = features(inputs.q).unbind(1),
             v = prepared(inputs.v).unbind(1), beta = prepared(inputs.beta.unsqueeze(-1)).unbind(1),
             live = all_live.unbind(1);
  std::vector<Tensor> rows;
  for (int64_t t = 0; t < problem.length; ++t) {
    const Token token{x[t], y[t], v[t], beta[t]};
    const Tensor written = what_is_written(token, state, options);
    state.memory = state.memory + token.x.unsqueeze(-1) * written.unsqueeze(-2);
    state.key_sums = state.key_sums + token.x;
    state.started = at::logical_or(state.started, live[t]);
    rows.push_back(at::where(live[t], what_is_read(token, state, options), 0.0));
  }
  return at::stack(rows, 1);
}

}  // namespace fmmformer
