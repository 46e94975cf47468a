// SPDX-License-Identifier: Apache-2.0
// Schema, gradient, shape-only kernels and the public function of fast_weight_attention. No
// arithmetic: that is the backends'.
#include "fmmformer/attention/fast_weight_attention.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "attention/fast_weight/fast_weight_problem.h"
#include "attention/fast_weight/fast_weight_schema.h"
#include "attention/kernels_here.h"
#include "attention/operator_node.h"
#include "attention/or_nothing.h"
#include "attention/problem.h"
#include "fmmformer/attention/fast_weight_reference.h"

namespace fmmformer {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

FastWeightNormaliser fast_weight_normaliser_from_name(const char* function,
                                                      const std::string& name) {
  try {
    return enum_from_name<FastWeightNormaliser>(name);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, function, ": ", error.what());
  }
}

FastWeightOptions fast_weight_options_from_schema(const char* function,
                                                  const std::string& feature_map,
                                                  bool unit_features, const std::string& normaliser,
                                                  double eps, double far_scale) {
  const FastWeightOptions options{
      .feature_map = feature_maps_from_names(function, {feature_map})[0],
      .unit_features = unit_features,
      .normaliser = fast_weight_normaliser_from_name(function, normaliser),
      .eps = eps,
      .far_scale = far_scale};
  check_options(function, options);
  return options;
}

PackedOptions pack_options(const FastWeightOptions& options) {
  return {.codes = {static_cast<int64_t>(options.feature_map), options.unit_features,
                    static_cast<int64_t>(options.normaliser)},
          .scales = {options.eps, options.far_scale}};
}

FastWeightOptions unpack_fast_weight_options(at::IntArrayRef codes, at::ArrayRef<double> scales) {
  TORCH_INTERNAL_ASSERT(codes.size() == 3 && scales.size() == 2);
  return {.feature_map = static_cast<FeatureMap>(codes[0]),
          .unit_features = codes[1] != 0,
          .normaliser = static_cast<FastWeightNormaliser>(codes[2]),
          .eps = scales[0],
          .far_scale = scales[1]};
}

namespace {

using ForwardTuple = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using ForwardSignature = ForwardTuple(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                      const OptionalTensor&, at::IntArrayRef, at::ArrayRef<double>,
                                      int64_t);
using BackwardTuple = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using BackwardSignature = BackwardTuple(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                        const Tensor&, const OptionalTensor&, const Tensor&,
                                        const Tensor&, const Tensor&, at::IntArrayRef,
                                        at::ArrayRef<double>);

ForwardTuple call_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                          const OptionalTensor& token_mask, const PackedOptions& options,
                          Kept kept) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fmmformer::fast_weight_attention_forward", "")
                             .typed<ForwardSignature>();
  // On a GPU training keeps the walk instead.
  check_kernels_here(
      kept == Kept::kStates ? "fast_weight_attention_prefill" : "fast_weight_attention", op, q);
  return op.call(q, k, v, beta, token_mask, options.codes, options.scales,
                 static_cast<int64_t>(kept));
}

OperatorNode::Tensors gradients(const Tensor& grad_out, const OperatorNode::Tensors& saved,
                                const PackedOptions& options) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fmmformer::fast_weight_attention_backward", "")
                             .typed<BackwardSignature>();
  auto [dq, dk, dv, dbeta] =
      op.call(grad_out, saved[0], saved[1], saved[2], saved[3], or_nothing(saved[4]), saved[5],
              saved[6], saved[7], options.codes, options.scales);
  return {dq, dk, dv, dbeta};
}

template <typename... Options>
struct PublicOps {
  static PackedOptions packed(const Options&... options) {
    return pack_options(fast_weight_options_from_schema("fast_weight_attention", options...));
  }

  static Tensor with_gradient(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                              const OptionalTensor& token_mask, Options... options) {
    PackedOptions packed_options = packed(options...);
    const bool wanted = wants_gradient("fast_weight_attention", q, k, v, beta);
    const Kept kept = !wanted ? Kept::kNothing : q.device().is_cuda() ? Kept::kWalk : Kept::kStates;
    const auto [out, memories, key_sums, walk] = below_autograd(
        [&] { return call_forward(q, k, v, beta, token_mask, packed_options, kept); });
    if (wanted) {
      node_behind(out, "FastWeightBackward", gradients, q, k, v, beta)
          ->save(std::move(packed_options), q, k, v, beta, token_mask, memories, key_sums, walk);
    }
    return out;
  }

  // inference_mode skips autograd and comes straight here; so do fake tensors that need no
  // gradient.
  static Tensor without_gradient(const Tensor& q, const Tensor& k, const Tensor& v,
                                 const Tensor& beta, const OptionalTensor& token_mask,
                                 Options... options) {
    return std::get<0>(call_forward(q, k, v, beta, token_mask, packed(options...), Kept::kNothing));
  }

  // Like torch's own attention it runs in autocast's low precision; beta keeps its own.
  template <c10::DeviceType kDevice>
  static Tensor under_autocast(const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& beta, const OptionalTensor& token_mask,
                               Options... options) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("fmmformer::fast_weight_attention", "")
                               .template typed<decltype(with_gradient)>();
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(
        at::autocast::get_autocast_dispatch_key_from_device_type(kDevice));
    const at::ScalarType type = at::autocast::get_autocast_dtype(kDevice);
    const auto cast = [&](const Tensor& x) { return at::autocast::cached_cast(type, x, kDevice); };
    return op.call(cast(q), cast(k), cast(v), beta, token_mask, options...);
  }

  static Tensor reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                          const OptionalTensor& token_mask, Options... options) {
    return fast_weight_attention_reference(
        {q, k, v, beta, token_mask},
        fast_weight_options_from_schema("fast_weight_attention_reference", options...));
  }
};
using Ops = WithFastWeightSchemaTypes<PublicOps>;

// Shape-only kernels, for torch.compile and meta tensors.
ForwardTuple forward_shapes(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                            const OptionalTensor& token_mask, at::IntArrayRef, at::ArrayRef<double>,
                            int64_t kept) {
  check_kinds("fast_weight_attention", FastWeightInputs{q, k, v, beta, token_mask});
  const c10::SymInt batch = q.sym_size(0), length = q.sym_size(1), heads = q.sym_size(2);
  const c10::SymInt head_dim = q.sym_size(3), value_dim = v.sym_size(3);
  const at::TensorOptions sums = q.options().dtype(accumulation_type(q.scalar_type()));
  const Tensor out = at::empty_symint({batch, length, heads, value_dim}, q.options());
  const Tensor nothing = at::empty({0}, sums);
  if (Kept(kept) == Kept::kNothing) return {out, nothing, nothing.clone(), nothing.clone()};
  const auto pieces = [&](int64_t size) { return batch * heads * ((length + (size - 1)) / size); };
  const c10::SymInt states = pieces(kTokensBetweenStates);
  const bool walk =
      Kept(kept) == Kept::kWalk && head_dim <= kNarrowHead && value_dim <= kNarrowHead;
  return {out, at::empty_symint({states, head_dim, value_dim}, sums),
          at::empty_symint({states, head_dim}, sums),
          walk ? at::empty_symint({pieces(kWalkChunk) * kWalkNumbers}, sums) : nothing};
}

BackwardTuple backward_shapes(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v,
                              const Tensor& beta, const OptionalTensor&, const Tensor&,
                              const Tensor&, const Tensor&, at::IntArrayRef, at::ArrayRef<double>) {
  return {empty_gradient_of(q), empty_gradient_of(k), empty_gradient_of(v),
          at::empty_symint(beta.sym_sizes(), beta.options())};
}

TORCH_LIBRARY_FRAGMENT(fmmformer, m) {
  const std::string tensors = kFastWeightTensorsSchema, options = kFastWeightOptionsSchema;
  const std::string attention = "fast_weight_attention(" + tensors + ", " + options + ") -> Tensor";
  const std::string reference =
      "fast_weight_attention_reference(" + tensors + ", " + options + ") -> Tensor";
  const std::string forward =
      "fast_weight_attention_forward(" + tensors +
      ", int[] codes, float[] scales, int kept) -> (Tensor out, Tensor memories, Tensor key_sums, "
      "Tensor walk)";
  const std::string backward = "fast_weight_attention_backward(Tensor grad_out, " + tensors +
                               ", Tensor memories, Tensor key_sums, Tensor walk, int[] codes, "
                               "float[] scales) -> (Tensor dq, "
                               "Tensor dk, Tensor dv, Tensor dbeta)";
  m.def(attention.c_str());
  m.def(reference.c_str(), &Ops::reference);
  m.def(forward.c_str());
  m.def(backward.c_str());
}

TORCH_LIBRARY_IMPL(fmmformer, Autograd, m) {
  m.impl("fast_weight_attention", &Ops::with_gradient);
  // Without these a second derivative would silently be wrong.
  m.impl("fast_weight_attention_forward", torch::autograd::autogradNotImplementedFallback());
  m.impl("fast_weight_attention_backward", torch::autograd::autogradNotImplementedFallback());
}
TORCH_LIBRARY_IMPL(fmmformer, CompositeExplicitAutograd, m) {
  m.impl("fast_weight_attention", &Ops::without_gradient);
}
TORCH_LIBRARY_IMPL(fmmformer, AutocastCPU, m) {
  m.impl("fast_weight_attention", &Ops::under_autocast<c10::DeviceType::CPU>);
}
TORCH_LIBRARY_IMPL(fmmformer, AutocastCUDA, m) {
  m.impl("fast_weight_attention", &Ops::under_autocast<c10::DeviceType::CUDA>);
}
TORCH_LIBRARY_IMPL(fmmformer, Meta, m) {
  m.impl("fast_weight_attention_forward", &forward_shapes);
  m.impl("fast_weight_attention_backward", &backward_shapes);
}

}  // namespace

FastWeightForward dispatch_forward(const FastWeightInputs& inputs, const FastWeightOptions& options,
                                   Kept kept) {
  auto [out, memories, key_sums, walk] = call_forward(
      inputs.q, inputs.k, inputs.v, inputs.beta, inputs.token_mask, pack_options(options), kept);
  return {out, memories, key_sums, walk};
}

Tensor fast_weight_attention(const FastWeightInputs& inputs, const FastWeightOptions& options) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fmmformer::fast_weight_attention", "")
                             .typed<decltype(Ops::with_gradient)>();
  return op.call(inputs.q, inputs.k, inputs.v, inputs.beta, inputs.token_mask,
                 std::string(enum_name(options.feature_map)), options.unit_features,
                 std::string(enum_name(options.normaliser)), options.eps, options.far_scale);
}

}  // namespace fmmformer
