// SPDX-License-Identifier: Apache-2.0
#include "attention/problem.h"

#include <ATen/ATen.h>

#include <cmath>

namespace fmmformer {
namespace {

constexpr const char* kShapeHelp =
    "[batch, length, heads, dim]; in Python pass layout=\"bhnd\" for [batch, heads, length, dim]";

// Whatever can be asked of a tensor whose batch and length may be symbolic.
void check_kind(const char* function, const char* name, const at::Tensor& tensor,
                const at::Tensor& q) {
  TORCH_CHECK_VALUE(tensor.defined(), function, ": ", name, " is not defined");
  TORCH_CHECK_VALUE(tensor.dim() == 4, function, ": ", name, " has ", tensor.dim(), " dimensions (",
                    tensor.sym_sizes(), "); allowed is 4, ", kShapeHelp);
  TORCH_CHECK_VALUE(tensor.device() == q.device(), function, ": ", name, " is on ", tensor.device(),
                    " but q is on ", q.device(), "; move them to one device with .to()");
  TORCH_CHECK_VALUE(tensor.scalar_type() == q.scalar_type(), function, ": ", name, " is of type ",
                    tensor.scalar_type(), " but q is ", q.scalar_type(),
                    "; convert them to one type with .to()");
  const std::optional<int64_t> dim = tensor.sym_size(3).maybe_as_int();
  TORCH_CHECK_VALUE(!dim || (*dim >= 1 && *dim <= kMaxHeadDim), function,
                    ": the head dimension of ", name, " is ", *dim, "; allowed is 1..", kMaxHeadDim,
                    "; split into more heads");
  const std::optional<int64_t> heads = tensor.sym_size(2).maybe_as_int(),
                               q_heads = q.sym_size(2).maybe_as_int();
  TORCH_CHECK_VALUE(!heads || *heads >= 1, function, ": ", name,
                    " has 0 heads; allowed is 1 or more");
  TORCH_CHECK_VALUE(!heads || !q_heads || *heads == *q_heads, function, ": ", name, " has shape ",
                    tensor.sym_sizes(), " but q has ", q.sym_sizes(),
                    "; the heads must agree (expand k and v to q's)");
}

void check_contiguous_rows(const char* function, const char* name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.size(3) <= 1 || tensor.stride(3) == 1, function, ": ", name,
                    "'s last dimension has stride ", tensor.stride(3),
                    "; it must be contiguous (stride 1); call .contiguous() on it");
}

void check_shapes(const char* function, const at::Tensor& q, const at::Tensor& k,
                  const at::Tensor& v) {
  TORCH_CHECK_VALUE(k.sizes() == q.sizes(), function, ": k has shape ", k.sizes(), " but q has ",
                    q.sizes(), "; this is self-attention: q and k must have equal shapes");
  TORCH_CHECK_VALUE(v.sizes().slice(0, 3) == q.sizes().slice(0, 3), function, ": v has shape ",
                    v.sizes(), " but q has ", q.sizes(),
                    "; batch, length and heads must agree (only the last dimension may differ)");
  TORCH_CHECK_VALUE(q.size(1) >= 1, function, ": length is 0; allowed is 1 or more");
}

void check_mask_and_seed(const char* function, const AttentionInputs& inputs,
                         const FmmOptions& options) {
  const at::Tensor& q = inputs.q;
  if (inputs.token_mask) {
    const at::Tensor& mask = *inputs.token_mask;
    TORCH_CHECK_VALUE(mask.sizes() == q.sizes().slice(0, 2), function, ": token_mask has shape ",
                      mask.sizes(), "; allowed is [batch, length] = ", q.sizes().slice(0, 2));
  }
  if (options.near_dropout == 0.0) return;
  TORCH_CHECK_VALUE(inputs.dropout_seed, function, ": near_dropout is ", options.near_dropout,
                    " but there is no dropout_seed; pass an int64 tensor of one element");
  const at::Tensor& seed = *inputs.dropout_seed;
  TORCH_CHECK_VALUE(seed.scalar_type() == at::kLong && seed.numel() == 1, function,
                    ": dropout_seed has type ", seed.scalar_type(), " and shape ", seed.sizes(),
                    "; allowed is an int64 tensor of one element");
  TORCH_CHECK_VALUE(seed.device() == q.device(), function, ": dropout_seed is on ", seed.device(),
                    " but q is on ", q.device(), "; move it with .to()");
}

void check_weight(const char* function, const char* name, const std::optional<at::Tensor>& weight,
                  std::vector<int64_t> target, const char* meaning) {
  if (!weight) return;
  const at::IntArrayRef sizes = weight->sizes();
  bool fits = sizes.size() <= target.size();
  for (size_t i = 0; fits && i < sizes.size(); ++i) {
    const int64_t wanted = target[target.size() - sizes.size() + i];
    fits = sizes[i] == 1 || sizes[i] == wanted;
  }
  TORCH_CHECK_VALUE(
      fits, function, ": ", name, " has shape ", sizes, ", which does not broadcast to ", meaning,
      " = ", at::IntArrayRef(target),
      "; use a scalar, one value per head (last dimension 1) or per head and channel");
}

FmmOptions resolved_options(const FmmOptions& options, int64_t length, int64_t head_dim) {
  FmmOptions resolved = options;
  if (!resolved.near_scale) resolved.near_scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  if (resolved.window) {
    resolved.window->left = std::min(resolved.window->left, length - 1);
    resolved.window->right = options.causal ? 0 : std::min(resolved.window->right, length - 1);
  }
  return resolved;
}

}  // namespace

void check_options(const char* function, const FmmOptions& options) {
  if (options.window) {
    TORCH_CHECK_VALUE(options.window->left >= 0 && options.window->right >= 0, function,
                      ": window is (", options.window->left, ", ", options.window->right,
                      "); allowed are left and right of 0 or more, or no window at all");
  }
  TORCH_CHECK_VALUE(options.feature_maps.size() <= kMaxFeatureMaps, function, ": there are ",
                    options.feature_maps.size(), " feature maps; allowed are 0..", kMaxFeatureMaps);
  TORCH_CHECK_VALUE(std::isfinite(options.eps) && options.eps >= 0, function, ": eps is ",
                    options.eps, "; allowed is a finite number of 0 or more, such as 1e-6");
  TORCH_CHECK_VALUE(std::isfinite(options.far_scale), function, ": far_scale is ",
                    options.far_scale, "; allowed is any finite number");
  TORCH_CHECK_VALUE(!options.near_scale || std::isfinite(*options.near_scale), function,
                    ": near_scale is ", options.near_scale.value_or(0),
                    "; allowed is any finite number, or none for 1/sqrt(head_dim)");
  TORCH_CHECK_VALUE(options.near_dropout >= 0 && options.near_dropout < 1, function,
                    ": near_dropout is ", options.near_dropout, "; allowed is 0 <= p < 1");
}

void check_kinds(const char* function, const AttentionInputs& inputs, const BlendWeights& weights) {
  const at::Tensor& q = inputs.q;
  check_kind(function, "q", q, q);
  check_kind(function, "k", inputs.k, q);
  check_kind(function, "v", inputs.v, q);
  const at::ScalarType type = q.scalar_type();
  TORCH_CHECK_VALUE(
      type == at::kDouble || type == at::kFloat || type == at::kBFloat16 || type == at::kHalf,
      function, ": q is of type ", type, "; allowed are fp64, fp32, bf16, fp16");
  for (const auto& [name, weight] : {std::pair{"near_weight", &weights.near_weight},
                                     std::pair{"far_weight", &weights.far_weight}}) {
    if (!*weight) continue;
    const at::Tensor& tensor = **weight;
    TORCH_CHECK_VALUE(at::isFloatingType(tensor.scalar_type()), function, ": ", name,
                      " is of type ", tensor.scalar_type(), "; allowed are floating types");
    TORCH_CHECK_VALUE(tensor.device() == q.device(), function, ": ", name, " is on ",
                      tensor.device(), " but q is on ", q.device(), "; move it with .to()");
  }
  if (!inputs.token_mask) return;
  const at::Tensor& mask = *inputs.token_mask;
  TORCH_CHECK_VALUE(mask.scalar_type() == at::kBool, function, ": token_mask is of type ",
                    mask.scalar_type(), "; allowed is bool, true = a real token; use mask != 0");
  TORCH_CHECK_VALUE(mask.device() == q.device(), function, ": token_mask is on ", mask.device(),
                    " but q is on ", q.device(), "; move it with .to()");
}

Problem checked_problem(const char* function, const AttentionInputs& inputs,
                        const BlendWeights& weights, const FmmOptions& options) {
  const at::Tensor& q = inputs.q;
  check_options(function, options);
  check_kinds(function, inputs, weights);
  check_contiguous_rows(function, "q", q);
  check_contiguous_rows(function, "k", inputs.k);
  check_contiguous_rows(function, "v", inputs.v);
  check_shapes(function, q, inputs.k, inputs.v);
  check_mask_and_seed(function, inputs, options);
  const int64_t heads = q.size(2), value_dim = inputs.v.size(3);
  const auto maps = static_cast<int64_t>(options.feature_maps.size());
  check_weight(function, "near_weight", weights.near_weight, {heads, value_dim},
               "[heads, value_dim]");
  check_weight(function, "far_weight", weights.far_weight, {maps, heads, value_dim},
               "[feature maps, heads, value_dim]");
  return {.batch = q.size(0),
          .length = q.size(1),
          .heads = heads,
          .head_dim = q.size(3),
          .value_dim = value_dim,
          .options = resolved_options(options, q.size(1), q.size(3))};
}

WeightStrides weight_strides(const at::Tensor& weight) {
  const auto stride = [&](int64_t from_the_end) {
    const bool varies = weight.dim() >= from_the_end && weight.size(-from_the_end) > 1;
    return varies ? weight.stride(-from_the_end) : 0;
  };
  return {stride(3), stride(2), stride(1)};
}

bool is_uniform_over_channels(const std::optional<at::Tensor>& weight) {
  return !weight || weight->dim() == 0 || weight->size(-1) == 1;
}

at::Tensor empty_gradient_of(const at::Tensor& input) {
  const at::Tensor alike = at::empty_like(input);
  return alike.sym_stride(3) == 1 ? alike : at::empty_symint(input.sym_sizes(), input.options());
}

at::ScalarType accumulation_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace fmmformer
