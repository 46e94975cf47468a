// SPDX-License-Identifier: Apache-2.0
#include "attention/full/flash.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "attention/deterministic_scope.h"

namespace fmmformer {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kChannelStep = 8;     // the kernels want D to be a multiple of it
constexpr int64_t kLargestWidth = 256;  // and not larger than this
constexpr double kDeadScore = -1e4;     // exp of it is 0, and fp32 still resolves it well

struct Flash : torch::autograd::Function<Flash> {
  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        const FlashOptions& options) {
    const auto [out, log_sums, starts_q, starts_k, longest_q, longest_k, seed, offset, unused] =
        at::_scaled_dot_product_flash_attention(q, k, v, options.dropout, options.causal,
                                                /*return_debug_mask=*/false, options.scale);
    context->save_for_backward({q, k, v, out, log_sums, starts_q, starts_k, seed, offset});
    context->saved_data["longest_q"] = longest_q.expect_int();
    context->saved_data["longest_k"] = longest_k.expect_int();
    context->saved_data["scale"] = options.scale;
    context->saved_data["causal"] = options.causal;
    context->saved_data["dropout"] = options.dropout;
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    auto& data = context->saved_data;
    const DeterministicScope same_bits;  // dq is a sum over blocks of keys
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
        grads[0], saved[0], saved[1], saved[2], saved[3], saved[4], saved[5], saved[6],
        data["longest_q"].toInt(), data["longest_k"].toInt(), data["dropout"].toDouble(),
        data["causal"].toBool(), saved[7], saved[8], data["scale"].toDouble());
    return {dq, dk, dv, Tensor()};
  }
};

/// x with eight channels more: the first as given, the others 0.
Tensor widened(const Tensor& x, const Tensor& channel) {
  const Tensor padded = at::constant_pad_nd(channel, {0, kChannelStep - 1});
  return at::cat({x, padded.expand({x.size(0), x.size(1), x.size(2), kChannelStep})}, -1);
}

}  // namespace

bool flash_applies(const Tensor& q, const Tensor& v, const FlashOptions& options, bool masked) {
  const int64_t width = q.size(-1) + (masked ? kChannelStep : 0);
  const bool half = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  const bool mask_fits = q.scalar_type() == at::kBFloat16 && std::abs(options.scale) > 1e-6;
  return q.is_cuda() && half && q.size(-1) == v.size(-1) && q.size(-1) % kChannelStep == 0 &&
         width <= kLargestWidth && (!masked || mask_fits) && q.numel() > 0;
}

Tensor flash_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                       const std::optional<Tensor>& live, const FlashOptions& options) {
  if (!live) return Flash::apply(q, k, v, options);
  // One channel more adds the same to every score of a dead key: 1 in every query, and in that key
  // what makes its score kDeadScore.
  const Tensor zero = at::zeros({1, 1, 1, 1}, q.options());
  const Tensor dead = at::where(*live, zero, kDeadScore / options.scale).to(q.scalar_type());
  const Tensor out =
      Flash::apply(widened(q, at::ones_like(zero)), widened(k, dead), widened(v, zero), options);
  return out.narrow(-1, 0, v.size(-1));
}

}  // namespace fmmformer
