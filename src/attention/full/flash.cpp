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

void keep(AutogradContext* context, const FlashOptions& options) {
  context->saved_data["scale"] = options.scale;
  context->saved_data["causal"] = options.causal;
  context->saved_data["dropout"] = options.dropout;
}
FlashOptions kept(AutogradContext* context) {
  auto& data = context->saved_data;
  return {data["scale"].toDouble(), data["causal"].toBool(), data["dropout"].toDouble()};
}

/// q, k, v and out as torch wants them, [B, H, N, D].
struct Flash : torch::autograd::Function<Flash> {
  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        const FlashOptions& options) {
    const auto [out, log_sums, starts_q, starts_k, longest_q, longest_k, seed, offset, unused] =
        at::_scaled_dot_product_flash_attention(q, k, v, options.dropout, options.causal,
                                                /*return_debug_mask=*/false, options.scale);
    context->save_for_backward({q, k, v, out, log_sums, starts_q, starts_k, seed, offset});
    context->saved_data["longest_q"] = longest_q.expect_int();
    context->saved_data["longest_k"] = longest_k.expect_int();
    keep(context, options);
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const FlashOptions options = kept(context);
    const DeterministicScope same_bits;  // dq is a sum over blocks of keys
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
        grads[0], saved[0], saved[1], saved[2], saved[3], saved[4], saved[5], saved[6],
        context->saved_data["longest_q"].toInt(), context->saved_data["longest_k"].toInt(),
        options.dropout, options.causal, saved[7], saved[8], options.scale);
    return {dq, dk, dv, Tensor()};
  }
};

/// Where the real tokens go when the dead ones between them are left out: their order stays, so
/// that causal means the same.
struct Packing {
  Tensor order;   // int64 [B N]: the token of a packed row; beyond the last real one, any
  Tensor place;   // int64 [B N]: the packed row of a token; of a dead one, any
  Tensor live;    // bool [B N, 1, 1]
  Tensor starts;  // int32 [B + 1]: the batch entries' first packed rows

  explicit Packing(const Tensor& token_mask) {
    const Tensor flat = token_mask.flatten();
    const int64_t tokens = flat.numel();
    const Tensor row = flat.cumsum(0, at::kLong) - 1;
    // Dead tokens share a slot behind all others, which nobody reads.
    const Tensor slot = at::where(flat, row, tokens);
    order = at::zeros({tokens + 1}, row.options())
                .scatter_(0, slot, at::arange(tokens, row.options()))
                .narrow(0, 0, tokens);
    place = row.clamp_min(0);
    live = flat.view({tokens, 1, 1});
    starts = at::constant_pad_nd(token_mask.sum(1).cumsum(0), {1, 0}).to(at::kInt);
  }
  Packing(Tensor order, Tensor place, Tensor live, Tensor starts)
      : order(std::move(order)),
        place(std::move(place)),
        live(std::move(live)),
        starts(std::move(starts)) {}

  /// [B, N, H, D] -> [B N, H, D]
  Tensor packed(const Tensor& x) const { return x.flatten(0, 1).index_select(0, order); }
  /// The way back; zeros for dead tokens, whatever their packed row holds.
  Tensor unpacked(const Tensor& x, at::IntArrayRef sizes) const {
    return at::where(live, x.index_select(0, place), 0.0).view(sizes);
  }
};

/// q, k, v and out are [B, N, H, D]. The packed tensors have room for B N rows, so that shapes do
/// not depend on the mask.
struct PackedFlash : torch::autograd::Function<PackedFlash> {
  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& token_mask, const FlashOptions& options) {
    const Packing packing(token_mask);
    const Tensor pq = packing.packed(q), pk = packing.packed(k), pv = packing.packed(v);
    const int64_t longest = q.size(1);
    const auto [out, log_sums, random, unused, debug] = at::_flash_attention_forward(
        pq, pk, pv, packing.starts, packing.starts, longest, longest, options.dropout,
        options.causal, /*return_debug_mask=*/false, options.scale);
    context->save_for_backward({pq, pk, pv, out, log_sums, random, unused, packing.order,
                                packing.place, packing.live, packing.starts});
    keep(context, options);
    return packing.unpacked(out, q.sizes());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const Packing packing(saved[7], saved[8], saved[9], saved[10]);
    const FlashOptions options = kept(context);
    const Tensor grad = packing.packed(grads[0]);
    const int64_t longest = grads[0].size(1);
    const auto [dq, dk, dv] = [&] {
      const DeterministicScope same_bits;
      return at::_flash_attention_backward(
          grad, saved[0], saved[1], saved[2], saved[3], saved[4], packing.starts, packing.starts,
          longest, longest, options.dropout, options.causal, saved[5], saved[6], options.scale);
    }();
    const auto sizes = grads[0].sizes();
    return {packing.unpacked(dq, sizes), packing.unpacked(dk, sizes), packing.unpacked(dv, sizes),
            Tensor(), Tensor()};
  }
};

}  // namespace

Tensor flash_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                       const std::optional<Tensor>& token_mask, const FlashOptions& options) {
  if (token_mask) return PackedFlash::apply(q, k, v, *token_mask, options);
  return Flash::apply(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), options)
      .transpose(1, 2);
}

}  // namespace fmmformer
