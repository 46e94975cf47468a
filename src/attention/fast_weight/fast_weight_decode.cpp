// SPDX-License-Identifier: Apache-2.0
// Prefill and the public side of step; a step's arithmetic is the backends' (cpu/decode_cpu.cpp).
#include "fmmformer/attention/fast_weight_decode.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "attention/fast_weight/fast_weight_problem.h"
#include "attention/fast_weight/fast_weight_schema.h"
#include "attention/fast_weight/fast_weight_step.h"
#include "attention/kernels_here.h"
#include "attention/problem.h"

namespace fmmformer {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr const char* kStep = "fast_weight_attention_step";

void check_token_rank(const FastWeightInputs& token) {
  TORCH_CHECK_VALUE(
      token.q.dim() == 3 && token.k.dim() == 3 && token.v.dim() == 3 && token.beta.dim() == 2,
      kStep, ": q, k, v, beta have ", token.q.dim(), ", ", token.k.dim(), ", ", token.v.dim(), ", ",
      token.beta.dim(),
      " dimensions; allowed are 3, 3, 3, 2: [batch, heads, dim] and [batch, heads], "
      "one token");
  TORCH_CHECK_VALUE(!token.token_mask || token.token_mask->dim() == 1, kStep, ": token_mask has ",
                    token.token_mask->dim(),
                    " dimensions; allowed is 1, [batch]: whether each token is real");
}

void check_same_sums(const FastWeightState& state, const FastWeightOptions& options) {
  const auto text = [](const auto& one) {  // a state and options name them alike
    return std::string(enum_name(one.feature_map)) +
           (one.unit_features ? " with unit_features" : "") + " and normaliser " +
           std::string(enum_name(one.normaliser));
  };
  TORCH_CHECK_VALUE(
      state.feature_map == options.feature_map && state.unit_features == options.unit_features &&
          state.normaliser == options.normaliser,
      kStep, ": the state was made with feature map ", text(state), ", this call has ",
      text(options), "; give the options that prefill was called with");
}

}  // namespace

FastWeightProblem checked_step(const FastWeightInputs& token, const FastWeightState& state,
                               const FastWeightOptions& options) {
  check_token_rank(token);
  FastWeightInputs sequence{.q = token.q.unsqueeze(1),
                            .k = token.k.unsqueeze(1),
                            .v = token.v.unsqueeze(1),
                            .beta = token.beta.unsqueeze(1)};
  if (token.token_mask) sequence.token_mask = token.token_mask->unsqueeze(1);
  const FastWeightProblem problem = checked_problem(kStep, sequence, options);
  const at::ScalarType sums = accumulation_type(token.q.scalar_type());
  const auto check = [&](const char* name, const Tensor& tensor, at::IntArrayRef shape,
                         at::ScalarType type) {
    TORCH_CHECK_VALUE(tensor.sizes() == shape && tensor.scalar_type() == type, kStep,
                      ": the state's ", name, " has shape ", tensor.sizes(), " and type ",
                      tensor.scalar_type(), "; this call needs ", shape, " and ", type,
                      "; give the state that prefill made with the same shapes and types");
    TORCH_CHECK_VALUE(tensor.is_contiguous() && tensor.device() == token.q.device(), kStep,
                      ": the state's ", name, " must be contiguous and on ", token.q.device(),
                      "; use state.to() or clone()");
  };
  check("memory", state.memory, {problem.batch, problem.heads, problem.head_dim, problem.value_dim},
        sums);
  check("key_sums", state.key_sums, {problem.batch, problem.heads, problem.head_dim}, sums);
  check("tokens", state.tokens, {problem.batch}, at::kLong);
  return problem;
}

std::pair<Tensor, FastWeightState> fast_weight_attention_prefill(const FastWeightInputs& inputs,
                                                                 const FastWeightOptions& options) {
  const FastWeightProblem problem =
      checked_problem("fast_weight_attention_prefill", inputs, options);
  const at::NoGradGuard no_gradient;
  const FastWeightForward result = dispatch_forward(inputs, options, Kept::kStates);
  const int64_t states = (problem.length + kTokensBetweenStates - 1) / kTokensBetweenStates;
  // Copies: the states before the last need not live on.
  const auto last = [&](const Tensor& kept, std::vector<int64_t> shape) {
    shape.insert(shape.begin(), {problem.batch, problem.heads, states});
    return kept.view(shape).select(2, states - 1).clone(at::MemoryFormat::Contiguous);
  };
  const Tensor tokens = inputs.token_mask ? inputs.token_mask->sum(1)
                                          : at::full({problem.batch}, problem.length,
                                                     inputs.q.options().dtype(at::kLong));
  return {result.out,
          {.memory = last(result.memories, {problem.head_dim, problem.value_dim}),
           .key_sums = last(result.key_sums, {problem.head_dim}),
           .tokens = tokens,
           .feature_map = options.feature_map,
           .unit_features = options.unit_features,
           .normaliser = options.normaliser}};
}

namespace {

template <typename... Options>
struct DecodeOps {
  static std::tuple<Tensor, Tensor, Tensor, Tensor> prefill(const Tensor& q, const Tensor& k,
                                                            const Tensor& v, const Tensor& beta,
                                                            const OptionalTensor& token_mask,
                                                            Options... options) {
    auto [out, state] = fast_weight_attention_prefill(
        {q, k, v, beta, token_mask},
        fast_weight_options_from_schema("fast_weight_attention_prefill", options...));
    return {out, state.memory, state.key_sums, state.tokens};
  }

  static Tensor step(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                     const OptionalTensor& token_mask, const Tensor& memory, const Tensor& key_sums,
                     const Tensor& tokens, const std::string& feature_map, bool unit_features,
                     const std::string& normaliser, Options... options) {
    FastWeightState state{memory,        key_sums,
                          tokens,        feature_maps_from_names(kStep, {feature_map})[0],
                          unit_features, fast_weight_normaliser_from_name(kStep, normaliser)};
    return fast_weight_attention_step({q, k, v, beta, token_mask}, state,
                                      fast_weight_options_from_schema(kStep, options...));
  }
};
using TypedDecodeOps = WithFastWeightSchemaTypes<DecodeOps>;

using StepSignature = Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                             const OptionalTensor&, const Tensor&, const Tensor&, const Tensor&,
                             at::IntArrayRef, at::ArrayRef<double>);

// Shapes only: a step as a compiler sees it.
Tensor step_shapes(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                   const OptionalTensor& token_mask, const Tensor& memory, const Tensor& key_sums,
                   const Tensor& tokens, at::IntArrayRef, at::ArrayRef<double>) {
  check_token_rank({q, k, v, beta, token_mask});
  const std::pair<const char*, const Tensor*> others[] = {{"k", &k},
                                                          {"v", &v},
                                                          {"beta", &beta},
                                                          {"the state's memory", &memory},
                                                          {"the state's key_sums", &key_sums},
                                                          {"the state's tokens", &tokens}};
  for (const auto& [name, tensor] : others) {
    TORCH_CHECK_VALUE(tensor->device() == q.device(), kStep, ": ", name, " is on ",
                      tensor->device(), " but q is on ", q.device(), "; move it with .to()");
  }
  return at::empty_symint({q.sym_size(0), q.sym_size(1), v.sym_size(2)}, q.options());
}

TORCH_LIBRARY_FRAGMENT(fmmformer, m) {
  const std::string tensors = kFastWeightTensorsSchema, options = kFastWeightOptionsSchema;
  const std::string state = "Tensor(a!) memory, Tensor(b!) key_sums, Tensor(c!) tokens";
  const std::string prefill = "fast_weight_attention_prefill(" + tensors + ", " + options +
                              ") -> (Tensor out, Tensor memory, Tensor key_sums, Tensor tokens)";
  const std::string step = "fast_weight_attention_step(" + tensors + ", " + state +
                           ", str state_feature_map, bool state_unit_features, "
                           "str state_normaliser, " +
                           options + ") -> Tensor";
  const std::string packed_step = "fast_weight_attention_step_packed(" + tensors + ", " + state +
                                  ", int[] codes, float[] scales) -> Tensor";
  // Both run without gradients, whatever their inputs ask for: decoding is inference.
  m.def(prefill.c_str(), &TypedDecodeOps::prefill);
  m.def(step.c_str(), &TypedDecodeOps::step);
  m.def(packed_step.c_str());
}
TORCH_LIBRARY_IMPL(fmmformer, Autograd, m) {
  m.impl("fast_weight_attention_step_packed", torch::autograd::autogradNotImplementedFallback());
}
TORCH_LIBRARY_IMPL(fmmformer, Meta, m) {
  m.impl("fast_weight_attention_step_packed", &step_shapes);
}

}  // namespace

Tensor fast_weight_attention_step(const FastWeightInputs& token, FastWeightState& state,
                                  const FastWeightOptions& options) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fmmformer::fast_weight_attention_step_packed", "")
                             .typed<StepSignature>();
  check_token_rank(token);
  check_same_sums(state, options);
  check_kernels_here(kStep, op, token.q);
  const at::NoGradGuard no_gradient;
  const PackedOptions packed = pack_options(options);
  return op.call(token.q, token.k, token.v, token.beta, token.token_mask, state.memory,
                 state.key_sums, state.tokens, packed.codes, packed.scales);
}

}  // namespace fmmformer
