// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/attention/full_attention.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <cmath>

#include "attention/full/flash.h"
#include "attention/problem.h"

namespace fmmformer {

namespace {

/// Which keys a query may see: bool [B, 1, N, N].
at::Tensor visible_keys(const at::Tensor& live, bool causal) {
  const int64_t length = live.size(2);
  at::Tensor visible = live.transpose(-1, -2).expand({-1, 1, length, length});
  if (causal) visible = at::logical_and(visible, at::ones({length, length}, live.options()).tril());
  // A dead query must see some key, or its softmax is NaN.
  return at::logical_or(visible, at::logical_not(live));
}

}  // namespace

at::Tensor full_attention(const AttentionInputs& inputs, const FullAttentionOptions& options) {
  checked_problem("full_attention", inputs, {}, {.near_scale = options.scale});
  TORCH_CHECK_VALUE(options.dropout >= 0 && options.dropout < 1, "full_attention: dropout is ",
                    options.dropout, "; allowed is 0 <= p < 1");
  at::Tensor q = inputs.q.transpose(1, 2), k = inputs.k.transpose(1, 2),
             v = inputs.v.transpose(1, 2);
  std::optional<at::Tensor> live;  // [B, 1, N, 1]
  if (inputs.token_mask) {
    live = inputs.token_mask->unsqueeze(1).unsqueeze(-1);
    // What dead tokens hold must not matter, NaN included: a mask alone would let NaN through.
    q = at::where(*live, q, 0.0), k = at::where(*live, k, 0.0), v = at::where(*live, v, 0.0);
  }
  const FlashOptions flash{
      .scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(-1)))),
      .causal = options.causal,
      .dropout = options.dropout};
  at::Tensor out;
  if (flash_applies(q, v, flash, live.has_value())) {
    out = flash_attention(q, k, v, live, flash);
  } else {
    const auto visible = live ? std::optional(visible_keys(*live, options.causal)) : std::nullopt;
    out = at::scaled_dot_product_attention(q, k, v, visible, options.dropout,
                                           options.causal && !visible, options.scale);
  }
  if (live) out = at::where(*live, out, 0.0);
  return out.transpose(1, 2);
}

namespace {

at::Tensor full_attention_op(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const std::optional<at::Tensor>& token_mask, bool causal,
                             std::optional<double> scale, double dropout) {
  return full_attention({.q = q, .k = k, .v = v, .token_mask = token_mask},
                        {.causal = causal, .scale = scale, .dropout = dropout});
}

TORCH_LIBRARY_FRAGMENT(fmmformer, m) {
  m.def(
      "full_attention(Tensor q, Tensor k, Tensor v, Tensor? token_mask, *, bool causal, float? "
      "scale, "
      "float dropout) -> Tensor",
      &full_attention_op);
}

}  // namespace
}  // namespace fmmformer
