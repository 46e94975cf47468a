// SPDX-License-Identifier: Apache-2.0
// Schema, gradient, shape-only kernels and the public function of fmm_attention. No arithmetic:
// that is the backends'.
#include "fmmformer/attention/fmm_attention.h"

#include <ATen/ATen.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "attention/fmm/fmm_schema.h"
#include "attention/kernels_here.h"
#include "attention/operator_node.h"
#include "attention/or_nothing.h"
#include "attention/problem.h"
#include "fmmformer/attention/fmm_reference.h"

namespace fmmformer {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

std::vector<FeatureMap> feature_maps_from_names(const char* function,
                                                const std::vector<std::string>& names) {
  std::vector<FeatureMap> maps;
  try {
    for (const std::string& name : names) maps.push_back(enum_from_name<FeatureMap>(name));
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, function, ": ", error.what());
  }
  return maps;
}

FmmOptions options_from_schema(const char* function, at::OptionalIntArrayRef window, bool causal,
                               const std::vector<std::string>& feature_maps, bool unit_features,
                               const std::string& normaliser, double eps,
                               std::optional<double> near_scale, double far_scale,
                               double near_dropout) {
  FmmOptions options{.causal = causal,
                     .unit_features = unit_features,
                     .eps = eps,
                     .near_scale = near_scale,
                     .far_scale = far_scale,
                     .near_dropout = near_dropout};
  if (window) {
    TORCH_CHECK_VALUE(window->size() == 2, function, ": window has ", window->size(),
                      " entries; allowed is (left, right) or none");
    options.window = Window{(*window)[0], (*window)[1]};
  }
  options.feature_maps = feature_maps_from_names(function, feature_maps);
  try {
    options.normaliser = enum_from_name<Normaliser>(normaliser);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, function, ": ", error.what());
  }
  check_options(function, options);
  return options;
}

PackedOptions pack_options(const FmmOptions& options) {
  PackedOptions packed;
  const Window window = options.window.value_or(Window{-1, -1});
  packed.codes = {window.left,
                  window.right,
                  options.causal,
                  options.unit_features,
                  static_cast<int64_t>(options.normaliser),
                  options.near_scale.has_value()};
  for (const FeatureMap map : options.feature_maps)
    packed.codes.push_back(static_cast<int64_t>(map));
  packed.scales = {options.eps, options.near_scale.value_or(0), options.far_scale,
                   options.near_dropout};
  return packed;
}

FmmOptions unpack_options(at::IntArrayRef codes, at::ArrayRef<double> scales) {
  TORCH_INTERNAL_ASSERT(codes.size() >= 6 && scales.size() == 4);
  FmmOptions options{.causal = codes[2] != 0,
                     .unit_features = codes[3] != 0,
                     .normaliser = static_cast<Normaliser>(codes[4]),
                     .eps = scales[0],
                     .far_scale = scales[2],
                     .near_dropout = scales[3]};
  if (codes[0] >= 0) options.window = Window{codes[0], codes[1]};
  if (codes[5] != 0) options.near_scale = scales[1];
  for (const int64_t code : codes.slice(6))
    options.feature_maps.push_back(static_cast<FeatureMap>(code));
  return options;
}

namespace {

using ForwardTuple = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using ForwardSignature = ForwardTuple(const Tensor&, const Tensor&, const Tensor&,
                                      const OptionalTensor&, const OptionalTensor&,
                                      const OptionalTensor&, const OptionalTensor&, at::IntArrayRef,
                                      at::ArrayRef<double>, int64_t);
using BackwardSignature = ForwardTuple(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                       const OptionalTensor&, const OptionalTensor&,
                                       const OptionalTensor&, const OptionalTensor&, const Tensor&,
                                       const Tensor&, const Tensor&, const Tensor&, at::IntArrayRef,
                                       at::ArrayRef<double>);

ForwardTuple call_forward(const Tensor& q, const Tensor& k, const Tensor& v,
                          const OptionalTensor& near_weight, const OptionalTensor& far_weight,
                          const OptionalTensor& token_mask, const OptionalTensor& dropout_seed,
                          const PackedOptions& options, Keep keep) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fmmformer::fmm_attention_forward", "")
                             .typed<ForwardSignature>();
  check_kernels_here(keep == Keep::kState ? "fmm_attention_prefill" : "fmm_attention", op, q);
  return op.call(q, k, v, near_weight, far_weight, token_mask, dropout_seed, options.codes,
                 options.scales, static_cast<int64_t>(keep));
}

OperatorNode::Tensors gradients(const Tensor& grad_out, const OperatorNode::Tensors& saved,
                                const PackedOptions& options) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fmmformer::fmm_attention_backward", "")
                             .typed<BackwardSignature>();
  const OptionalTensor near_weight = or_nothing(saved[3]), far_weight = or_nothing(saved[4]);
  auto [dq, dk, dv, dnear, dfar] = op.call(
      grad_out, saved[0], saved[1], saved[2], near_weight, far_weight, or_nothing(saved[5]),
      or_nothing(saved[6]), saved[7], saved[8], saved[9], saved[10], options.codes, options.scales);
  return {dq, dk, dv, near_weight ? dnear : Tensor(), far_weight ? dfar : Tensor()};
}

template <typename... Options>
struct PublicOps {
  static Tensor with_gradient(const Tensor& q, const Tensor& k, const Tensor& v,
                              const OptionalTensor& near_weight, const OptionalTensor& far_weight,
                              const OptionalTensor& token_mask, const OptionalTensor& dropout_seed,
                              Options... options) {
    PackedOptions packed = pack_options(options_from_schema("fmm_attention", options...));
    const bool wanted = wants_gradient("fmm_attention", q, k, v, near_weight, far_weight);
    // A graph that torch.compile makes has to know every shape.
    const Keep keep = wanted && !at::isTensorSubclassLike(q) ? Keep::kForBackward : Keep::kNothing;
    const auto [out, log_sum_exp, normalisers, far_sums, far_key_sums] = below_autograd([&] {
      return call_forward(q, k, v, near_weight, far_weight, token_mask, dropout_seed, packed, keep);
    });
    if (wanted) {
      node_behind(out, "FmmAttentionBackward", gradients, q, k, v, near_weight, far_weight)
          ->save(std::move(packed), q, k, v, near_weight, far_weight, token_mask, dropout_seed,
                 log_sum_exp, normalisers, far_sums, far_key_sums);
    }
    return out;
  }

  // inference_mode skips autograd and comes straight here; so do fake tensors that need no
  // gradient.
  static Tensor without_gradient(const Tensor& q, const Tensor& k, const Tensor& v,
                                 const OptionalTensor& near_weight,
                                 const OptionalTensor& far_weight, const OptionalTensor& token_mask,
                                 const OptionalTensor& dropout_seed, Options... options) {
    const PackedOptions packed = pack_options(options_from_schema("fmm_attention", options...));
    return std::get<0>(call_forward(q, k, v, near_weight, far_weight, token_mask, dropout_seed,
                                    packed, Keep::kNothing));
  }

  // Attention is a product: like torch's own it runs in autocast's low precision; the weights keep
  // theirs.
  template <c10::DeviceType kDevice>
  static Tensor under_autocast(const Tensor& q, const Tensor& k, const Tensor& v,
                               const OptionalTensor& near_weight, const OptionalTensor& far_weight,
                               const OptionalTensor& token_mask, const OptionalTensor& dropout_seed,
                               Options... options) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("fmmformer::fmm_attention", "")
                               .template typed<decltype(with_gradient)>();
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(
        at::autocast::get_autocast_dispatch_key_from_device_type(kDevice));
    const at::ScalarType type = at::autocast::get_autocast_dtype(kDevice);
    const auto cast = [&](const Tensor& x) { return at::autocast::cached_cast(type, x, kDevice); };
    return op.call(cast(q), cast(k), cast(v), near_weight, far_weight, token_mask, dropout_seed,
                   options...);
  }

  static Tensor reference(const Tensor& q, const Tensor& k, const Tensor& v,
                          const OptionalTensor& near_weight, const OptionalTensor& far_weight,
                          const OptionalTensor& token_mask, const OptionalTensor& dropout_seed,
                          Options... options) {
    return fmm_attention_reference({q, k, v, token_mask, dropout_seed}, {near_weight, far_weight},
                                   options_from_schema("fmm_attention_reference", options...));
  }
};
using Ops = WithSchemaTypes<PublicOps>;

// Shape-only kernels, for torch.compile and meta tensors.
ForwardTuple forward_shapes(const Tensor& q, const Tensor& k, const Tensor& v,
                            const OptionalTensor& near_weight, const OptionalTensor& far_weight,
                            const OptionalTensor& token_mask, const OptionalTensor& dropout_seed,
                            at::IntArrayRef codes, at::ArrayRef<double> scales, int64_t keep) {
  check_kinds("fmm_attention", {q, k, v, token_mask, dropout_seed}, {near_weight, far_weight});
  const FmmOptions options = unpack_options(codes, scales);
  const auto maps = static_cast<int64_t>(options.feature_maps.size());
  const c10::SymInt batch = q.sym_size(0), length = q.sym_size(1), heads = q.sym_size(2);
  const c10::SymInt head_dim = q.sym_size(3), value_dim = v.sym_size(3);
  const at::TensorOptions sums = q.options().dtype(accumulation_type(q.scalar_type()));
  const auto sum_like = [&](bool kept, std::vector<c10::SymInt> shape) {
    return kept ? at::empty_symint(shape, sums) : at::empty({0}, sums);
  };
  const bool row_sums = maps > 0 && options.normaliser == Normaliser::kRowSum;
  const bool state = maps > 0 && (static_cast<Keep>(keep) == Keep::kState || !options.causal);
  return {at::empty_symint({batch, length, heads, value_dim}, q.options()),
          sum_like(options.window.has_value(), {batch, heads, length}),
          sum_like(row_sums, {batch, heads, maps, length}),
          sum_like(state, {batch, heads, maps, head_dim, value_dim}),
          sum_like(state, {batch, heads, maps, head_dim})};
}

ForwardTuple backward_shapes(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v,
                             const OptionalTensor& near_weight, const OptionalTensor& far_weight,
                             const OptionalTensor&, const OptionalTensor&, const Tensor&,
                             const Tensor&, const Tensor&, const Tensor&, at::IntArrayRef,
                             at::ArrayRef<double>) {
  const auto like = [&](const OptionalTensor& weight) {
    return weight ? at::empty_symint(weight->sym_sizes(), weight->options())
                  : at::empty({0}, q.options());
  };
  return {empty_gradient_of(q), empty_gradient_of(k), empty_gradient_of(v), like(near_weight),
          like(far_weight)};
}

constexpr const char* kTensorsSchema =
    "Tensor q, Tensor k, Tensor v, Tensor? near_weight, Tensor? far_weight, Tensor? token_mask, "
    "Tensor? dropout_seed";

TORCH_LIBRARY(fmmformer, m) {
  const std::string tensors = kTensorsSchema, options = kOptionsSchema;
  const std::string attention = "fmm_attention(" + tensors + ", " + options + ") -> Tensor";
  const std::string reference =
      "fmm_attention_reference(" + tensors + ", " + options + ") -> Tensor";
  const std::string forward = "fmm_attention_forward(" + tensors +
                              ", int[] codes, float[] scales, int keep) "
                              "-> (Tensor out, Tensor log_sum_exp, Tensor normalisers, Tensor "
                              "far_sums, Tensor far_key_sums)";
  const std::string backward =
      "fmm_attention_backward(Tensor grad_out, " + tensors +
      ", Tensor log_sum_exp, Tensor normalisers, Tensor far_sums, Tensor far_key_sums, int[] "
      "codes, float[] scales) "
      "-> (Tensor dq, Tensor dk, Tensor dv, Tensor dnear_weight, Tensor dfar_weight)";
  m.def(attention.c_str());
  m.def(reference.c_str(), &Ops::reference);
  m.def(forward.c_str());
  m.def(backward.c_str());
}

TORCH_LIBRARY_IMPL(fmmformer, Autograd, m) {
  m.impl("fmm_attention", &Ops::with_gradient);
  // Without these a second derivative would silently be wrong.
  m.impl("fmm_attention_forward", torch::autograd::autogradNotImplementedFallback());
  m.impl("fmm_attention_backward", torch::autograd::autogradNotImplementedFallback());
}
TORCH_LIBRARY_IMPL(fmmformer, CompositeExplicitAutograd, m) {
  m.impl("fmm_attention", &Ops::without_gradient);
}
TORCH_LIBRARY_IMPL(fmmformer, AutocastCPU, m) {
  m.impl("fmm_attention", &Ops::under_autocast<c10::DeviceType::CPU>);
}
TORCH_LIBRARY_IMPL(fmmformer, AutocastCUDA, m) {
  m.impl("fmm_attention", &Ops::under_autocast<c10::DeviceType::CUDA>);
}
TORCH_LIBRARY_IMPL(fmmformer, Meta, m) {
  m.impl("fmm_attention_forward", &forward_shapes);
  m.impl("fmm_attention_backward", &backward_shapes);
}

}  // namespace

ForwardResult dispatch_forward(const AttentionInputs& inputs, const BlendWeights& weights,
                               const FmmOptions& options, Keep keep) {
  auto [out, log_sum_exp, normalisers, far_sums, far_key_sums] =
      call_forward(inputs.q, inputs.k, inputs.v, weights.near_weight, weights.far_weight,
                   inputs.token_mask, inputs.dropout_seed, pack_options(options), keep);
  return {out, log_sum_exp, normalisers, far_sums, far_key_sums};
}

Tensor fmm_attention(const AttentionInputs& inputs, const BlendWeights& weights,
                     const FmmOptions& options) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fmmformer::fmm_attention", "")
                             .typed<decltype(Ops::with_gradient)>();
  std::vector<std::string> maps;
  for (const FeatureMap map : options.feature_maps) maps.emplace_back(enum_name(map));
  std::vector<int64_t> window;
  if (options.window) window = {options.window->left, options.window->right};
  return op.call(inputs.q, inputs.k, inputs.v, weights.near_weight, weights.far_weight,
                 inputs.token_mask, inputs.dropout_seed,
                 options.window ? at::OptionalIntArrayRef(window) : std::nullopt, options.causal,
                 maps, options.unit_features, std::string(enum_name(options.normaliser)),
                 options.eps, options.near_scale, options.far_scale, options.near_dropout);
}

}  // namespace fmmformer
