// SPDX-License-Identifier: Apache-2.0
// Prefill and the public side of step; a step's arithmetic is the backends' (cpu/decode_cpu.cpp).
#include "fmmformer/attention/fmm_decode.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "attention/fmm/fmm_schema.h"
#include "attention/kernels_here.h"
#include "attention/problem.h"

namespace fmmformer {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr int64_t kMostKeysRemembered = int64_t{1}
                                        << 24;  // a mistake beyond: gigabytes for every head

void check_causal(const char* function, const FmmOptions& options) {
  TORCH_CHECK_VALUE(options.causal, function,
                    ": causal is false; decoding goes token by token, so it must be true");
}

// Whether two sizes may be equal: one that is symbolic may be anything.
bool may_equal(const c10::SymInt& a, const c10::SymInt& b) {
  const std::optional<int64_t> x = a.maybe_as_int(), y = b.maybe_as_int();
  return !x || !y || *x == *y;
}

// A step's shapes, as the user has them: the kernels see a sequence of one token.
void check_token(const AttentionInputs& token) {
  const Tensor &q = token.q, &k = token.k, &v = token.v;
  TORCH_CHECK_VALUE(q.dim() == 3 && k.dim() == 3 && v.dim() == 3,
                    "fmm_attention_step: q, k, v have ", q.dim(), ", ", k.dim(), ", ", v.dim(),
                    " dimensions; allowed is 3, [batch, heads, dim]: one token");
  for (const int64_t dim : {0, 1, 2}) {
    TORCH_CHECK_VALUE(may_equal(k.sym_size(dim), q.sym_size(dim)),
                      "fmm_attention_step: k has shape ", k.sym_sizes(), " but q has ",
                      q.sym_sizes(), "; q and k must have equal shapes");
    TORCH_CHECK_VALUE(dim == 2 || may_equal(v.sym_size(dim), q.sym_size(dim)),
                      "fmm_attention_step: v has shape ", v.sym_sizes(), " but q has ",
                      q.sym_sizes(),
                      "; batch and heads must agree (only the last dimension may differ)");
  }
  if (!token.token_mask) return;
  const Tensor& mask = *token.token_mask;
  TORCH_CHECK_VALUE(mask.dim() == 1 && may_equal(mask.sym_size(0), q.sym_size(0)),
                    "fmm_attention_step: token_mask has shape ", mask.sym_sizes(),
                    "; allowed is [batch] = [", q.sym_size(0), "]: whether each token is real");
}

std::string features_text(const std::vector<FeatureMap>& maps, bool unit_features) {
  std::vector<std::string> names;
  for (const FeatureMap map : maps) names.emplace_back(enum_name(map));
  return "(" + join_names(names) + ")" + (unit_features ? " with unit_features" : "");
}

// Maps of equal number have sums of equal shapes: only their names tell them apart.
void check_same_features(const FmmState& state, const FmmOptions& options) {
  const bool same = state.feature_maps == options.feature_maps &&
                    (options.feature_maps.empty() || state.unit_features == options.unit_features);
  TORCH_CHECK_VALUE(same, "fmm_attention_step: the state was made with feature maps ",
                    features_text(state.feature_maps, state.unit_features), ", this call has ",
                    features_text(options.feature_maps, options.unit_features),
                    "; give the options that prefill was called with");
}

// The positions whose keys a state remembers: `left` of them, ending at each batch entry's last
// real token. [batch, left]; positions before the first token are negative.
Tensor remembered_positions(const Tensor& mask, int64_t left) {
  const int64_t length = mask.size(1);
  const Tensor positions = at::arange(1, length + 1, mask.options().dtype(at::kLong));
  const Tensor ends = at::where(mask, positions, 0).amax(1, /*keepdim=*/true);  // [batch, 1]
  return ends - left + at::arange(left, positions.options());
}

// Rows of [batch, length, heads, dim] at `positions`, zeros where nothing live is.
Tensor gather_rows(const Tensor& x, const Tensor& positions, const Tensor& live) {
  const Tensor index =
      positions.clamp_min(0).unsqueeze(-1).unsqueeze(-1).expand({-1, -1, x.size(2), x.size(3)});
  return at::where(live.unsqueeze(-1).unsqueeze(-1), x.gather(1, index),
                   at::zeros({}, x.options()));
}

// Oldest first to ring order: the token of position p lies in slot p % left.
Tensor to_ring(const Tensor& oldest_first, int64_t position) {
  const int64_t left = oldest_first.size(1);
  return left == 0 ? oldest_first : oldest_first.roll(position % left, 1).contiguous();
}

}  // namespace

std::pair<Tensor, FmmState> fmm_attention_prefill(const AttentionInputs& inputs,
                                                  const BlendWeights& weights,
                                                  const FmmOptions& given) {
  check_causal("fmm_attention_prefill", given);
  FmmOptions options = given;
  options.near_dropout = 0.0;  // decoding is inference
  checked_problem("fmm_attention_prefill", inputs, weights, options);
  TORCH_CHECK_VALUE(!options.window || options.window->left <= kMostKeysRemembered,
                    "fmm_attention_prefill: the window reaches ", options.window->left,
                    " keys back, and a state remembers them all; allowed are up to ",
                    kMostKeysRemembered);
  const at::NoGradGuard no_gradient;
  const ForwardResult result = dispatch_forward(inputs, weights, options, Keep::kState);

  const Tensor& k = inputs.k;
  const int64_t batch = k.size(0), length = k.size(1), heads = k.size(2), head_dim = k.size(3);
  const int64_t left = options.window ? options.window->left : 0;
  const Tensor mask =
      inputs.token_mask.value_or(at::ones({batch, length}, k.options().dtype(at::kBool)));
  const Tensor positions = remembered_positions(mask, left);
  const Tensor live = at::logical_and(positions >= 0, mask.gather(1, positions.clamp_min(0)));
  FmmState state{.keys = to_ring(gather_rows(k, positions, live), length),
                 .values = to_ring(gather_rows(inputs.v, positions, live), length),
                 .live = to_ring(live, length),
                 .far_sums = result.far_sums,
                 .far_key_sums = result.far_key_sums,
                 .position = at::full({1}, length, k.options().dtype(at::kLong)),
                 .feature_maps = options.feature_maps,
                 .unit_features = options.unit_features};
  if (options.feature_maps.empty()) {
    state.far_sums = result.far_sums.new_zeros({batch, heads, 0, head_dim, inputs.v.size(3)});
    state.far_key_sums = result.far_sums.new_zeros({batch, heads, 0, head_dim});
  }
  return {result.out, state};
}

namespace {

template <typename... Options>
struct DecodeOps {
  static std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> prefill(
      const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& near_weight,
      const OptionalTensor& far_weight, const OptionalTensor& token_mask, Options... options) {
    auto [out, state] = fmm_attention_prefill(
        {.q = q, .k = k, .v = v, .token_mask = token_mask}, {near_weight, far_weight},
        options_from_schema("fmm_attention_prefill", options...));
    return {out,           state.keys, state.values, state.live, state.far_sums, state.far_key_sums,
            state.position};
  }

  static Tensor step(const Tensor& q, const Tensor& k, const Tensor& v,
                     const OptionalTensor& near_weight, const OptionalTensor& far_weight,
                     const OptionalTensor& token_mask, const Tensor& keys, const Tensor& values,
                     const Tensor& live, const Tensor& far_sums, const Tensor& far_key_sums,
                     const Tensor& position, const std::vector<std::string>& feature_maps,
                     bool unit_features, Options... options) {
    FmmState state{keys,
                   values,
                   live,
                   far_sums,
                   far_key_sums,
                   position,
                   feature_maps_from_names("fmm_attention_step", feature_maps),
                   unit_features};
    return fmm_attention_step({.q = q, .k = k, .v = v, .token_mask = token_mask}, state,
                              {near_weight, far_weight},
                              options_from_schema("fmm_attention_step", options...));
  }
};
using TypedDecodeOps = WithSchemaTypes<DecodeOps>;

using StepSignature = Tensor(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
                             const OptionalTensor&, const OptionalTensor&, const Tensor&,
                             const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                             const Tensor&, at::IntArrayRef, at::ArrayRef<double>);

constexpr const char* kStateSchema =
    "Tensor(a!) keys, Tensor(b!) values, Tensor(c!) live, Tensor(d!) far_sums, Tensor(e!) "
    "far_key_sums, "
    "Tensor(f!) position";

TORCH_LIBRARY_FRAGMENT(fmmformer, m) {
  const std::string tensors =
      "Tensor q, Tensor k, Tensor v, Tensor? near_weight, Tensor? far_weight, Tensor? token_mask";
  const std::string options = kOptionsSchema, state = kStateSchema;
  const std::string prefill =
      "fmm_attention_prefill(" + tensors + ", " + options +
      ") -> (Tensor out, Tensor keys, Tensor values, Tensor live, Tensor far_sums, "
      "Tensor far_key_sums, Tensor position)";
  const std::string step = "fmm_attention_step(" + tensors + ", " + state +
                           ", str[] state_feature_maps, bool state_unit_features, " + options +
                           ") -> Tensor";
  const std::string packed_step = "fmm_attention_step_packed(" + tensors + ", " + state +
                                  ", int[] codes, float[] scales) -> Tensor";
  // Both run without gradients, whatever their inputs ask for: decoding is inference.
  m.def(prefill.c_str(), &TypedDecodeOps::prefill);
  m.def(step.c_str(), &TypedDecodeOps::step);
  m.def(packed_step.c_str());
}
TORCH_LIBRARY_IMPL(fmmformer, Autograd, m) {
  m.impl("fmm_attention_step_packed", torch::autograd::autogradNotImplementedFallback());
}
// Shapes only: a step as a compiler sees it.
Tensor step_shapes(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor&,
                   const OptionalTensor&, const OptionalTensor&, const Tensor& keys,
                   const Tensor& values, const Tensor& live, const Tensor& far_sums,
                   const Tensor& far_key_sums, const Tensor& position, at::IntArrayRef,
                   at::ArrayRef<double>) {
  TORCH_CHECK_VALUE(q.dim() == 3 && k.dim() == 3 && v.dim() == 3,
                    "fmm_attention_step: q, k, v have ", q.dim(), ", ", k.dim(), ", ", v.dim(),
                    " dimensions; allowed is 3, [batch, heads, dim]: one token");
  const std::pair<const char*, const Tensor*> others[] = {
      {"k", &k},
      {"v", &v},
      {"the state's keys", &keys},
      {"the state's values", &values},
      {"the state's live", &live},
      {"the state's far_sums", &far_sums},
      {"the state's far_key_sums", &far_key_sums},
      {"the state's position", &position}};
  for (const auto& [name, tensor] : others) {
    TORCH_CHECK_VALUE(tensor->device() == q.device(), "fmm_attention_step: ", name, " is on ",
                      tensor->device(), " but q is on ", q.device(), "; move it with .to()");
  }
  return at::empty_symint({q.sym_size(0), q.sym_size(1), v.sym_size(2)}, q.options());
}
TORCH_LIBRARY_IMPL(fmmformer, Meta, m) { m.impl("fmm_attention_step_packed", &step_shapes); }

}  // namespace

Tensor fmm_attention_step(const AttentionInputs& token, FmmState& state,
                          const BlendWeights& weights, const FmmOptions& options) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fmmformer::fmm_attention_step_packed", "")
                             .typed<StepSignature>();
  check_causal("fmm_attention_step", options);
  check_token(token);
  check_same_features(state, options);
  TORCH_CHECK_VALUE(options.normaliser != Normaliser::kInvSqrtLength,
                    "fmm_attention_step: normaliser is inv_sqrt_length, but a step has no length "
                    "to divide by; use "
                    "row_sum or none");
  check_kernels_here("fmm_attention_step", op, token.q);
  const at::NoGradGuard no_gradient;
  const PackedOptions packed = pack_options(options);
  return op.call(token.q, token.k, token.v, weights.near_weight, weights.far_weight,
                 token.token_mask, state.keys, state.values, state.live, state.far_sums,
                 state.far_key_sums, state.position, packed.codes, packed.scales);
}

}  // namespace fmmformer
