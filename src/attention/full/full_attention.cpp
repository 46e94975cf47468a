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

bool full_attention_is_fused(const AttentionInputs& inputs) {
  constexpr int64_t kChannelStep = 8, kMostChannels = 256;  // what the kernels take
  const at::Tensor& q = inputs.q;
  const bool half = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  return q.is_cuda() && half && q.size(-1) == inputs.v.size(-1) && q.size(-1) % kChannelStep == 0 &&
         q.size(-1) <= kMostChannels && q.numel() > 0;
}

at::Tensor full_attention(const AttentionInputs& inputs, const FullAttentionOptions& options) {
  checked_problem("full_attention", inputs, {}, {.near_scale = options.scale});
  TORCH_CHECK_VALUE(options.dropout >= 0 && options.dropout < 1, "full_attention: dropout is ",
                    options.dropout, "; allowed is 0 <= p < 1");
  if (full_attention_is_fused(inputs)) {
    const double default_scale = 1.0 / std::sqrt(static_cast<double>(inputs.q.size(-1)));
    return flash_attention(inputs.q, inputs.k, inputs.v, inputs.token_mask,
                           {.scale = options.scale.value_or(default_scale),
                            .causal = options.causal,
                            .dropout = options.dropout});
  }
  at::Tensor q = inputs.q.transpose(1, 2), k = inputs.k.transpose(1, 2),
             v = inputs.v.transpose(1, 2);
  if (!inputs.token_mask) {
    return at::scaled_dot_product_attention(q, k, v, {}, options.dropout, options.causal,
                                            options.scale)
        .transpose(1, 2);
  }
  const at::Tensor live = inputs.token_mask->unsqueeze(1).unsqueeze(-1);  // [B, 1, N, 1]
  // What dead tokens hold must not matter, NaN included: torch's mask alone would let NaN through.
  q = at::where(live, q, 0.0), k = at::where(live, k, 0.0), v = at::where(live, v, 0.0);
  const at::Tensor out =
      at::scaled_dot_product_attention(q, k, v, visible_keys(live, options.causal), options.dropout,
                                       /*is_causal=*/false, options.scale);
  return at::where(live, out, 0.0).transpose(1, 2);
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
