// SPDX-License-Identifier: Apache-2.0
#include "bench/case_tensors.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

namespace fmmformer::bench {
namespace {

/// The leaves hold what is drawn; inputs and weights are views of them. Rebuilding the views from
/// changed leaves is how a case moves to another type or layout.
void connect(CaseTensors& tensors, int64_t heads) {
  for (NamedTensor& leaf : tensors.leaves) {
    at::Tensor& t = leaf.tensor;
    t.requires_grad_(true);
    if (leaf.name == "q") tensors.inputs.q = t;
    if (leaf.name == "k") tensors.inputs.k = t.expand({t.size(0), t.size(1), heads, t.size(3)});
    if (leaf.name == "v") tensors.inputs.v = t.expand({t.size(0), t.size(1), heads, t.size(3)});
    if (leaf.name == "near_weight") tensors.weights.near_weight = t;
    if (leaf.name == "far_weight") tensors.weights.far_weight = t;
  }
}

at::Tensor laid_out(const at::Tensor& bnhd, Layout layout) {
  if (layout == Layout::kBnhd) return bnhd.contiguous();
  return bnhd.transpose(1, 2).contiguous().transpose(1, 2);
}

/// Random numbers from a seed: in double on the CPU, in fp32 on a GPU, where a long case would not
/// fit otherwise.
class Source {
 public:
  Source(uint64_t seed, const c10::Device& device)
      : device_(device),
        generator_(device.is_cpu() ? at::detail::createCPUGenerator()
                                   : at::globalContext().defaultGenerator(device)) {
    generator_.set_current_seed(seed);
  }

  at::Tensor normal(at::IntArrayRef shape) const {
    const c10::ScalarType type = device_.is_cpu() ? at::kDouble : at::kFloat;
    return at::randn(shape, generator_, at::device(device_).dtype(type));
  }

 private:
  c10::Device device_;
  at::Generator generator_;
};

at::Tensor live_tokens(const AttentionCase& c, uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  at::Tensor live = at::ones({c.batch, c.length}, at::kBool);
  for (int64_t b = 0; b < c.batch; ++b) {
    // Another length in every batch entry, and at least one token on each side of the border.
    const int64_t dead = std::min(c.length - 1, c.length * (b + 1) / (c.batch + 2) + 1);
    at::Tensor row = live[b];
    if (c.mask == MaskPattern::kLeft) row.slice(0, 0, dead).fill_(false);
    if (c.mask == MaskPattern::kRight) row.slice(0, c.length - dead).fill_(false);
    if (c.mask == MaskPattern::kInterior) {
      row.slice(0, c.length / 4, std::min(c.length, c.length / 4 + dead)).fill_(false);
    }
    if (c.mask == MaskPattern::kRandom)
      row.copy_(at::rand({c.length}, generator, at::kDouble) > 0.3);
    if (c.mask == MaskPattern::kAllDead && b == 0) row.fill_(false);
    if (c.mask == MaskPattern::kQuarter) row.slice(0, c.length - c.length / 4).fill_(false);
  }
  return live;
}

/// Alternates NaN, +inf and -inf over the dead tokens.
void poison(at::Tensor& values, const at::Tensor& live) {
  const double inf = std::numeric_limits<double>::infinity();
  const at::Tensor kinds =
      at::tensor({std::numeric_limits<double>::quiet_NaN(), inf, -inf}, at::kDouble)
          .to(values.options());
  const at::Tensor position = at::arange(values.size(1), values.device()).remainder(3);
  const at::Tensor garbage = kinds.index_select(0, position).view({1, -1, 1, 1});
  values = at::where(live.unsqueeze(-1).unsqueeze(-1), values, garbage);
}

std::vector<int64_t> weight_shape(const AttentionCase& c) {
  if (c.weights == WeightShape::kPerHead) return {c.heads, 1};
  if (c.weights == WeightShape::kPerChannel) return {c.heads, c.channels()};
  return {};
}

void draw_weights(CaseTensors& tensors, const AttentionCase& c, c10::ScalarType dtype,
                  const Source& source) {
  if (c.weights == WeightShape::kNone) return;
  const c10::ScalarType type = dtype == c10::kDouble ? c10::kDouble : c10::kFloat;
  const auto draw = [&](const std::vector<int64_t>& shape) {
    return (source.normal(shape) * 0.4 + 0.5).to(type);
  };
  std::vector<int64_t> shape = weight_shape(c);
  if (tensors.options.window) tensors.leaves.push_back({"near_weight", draw(shape)});
  if (c.feature_maps.empty()) return;
  // A scalar per feature map needs its two trailing dimensions to broadcast to [maps, heads,
  // value_dim].
  if (c.weights == WeightShape::kScalar) shape = {1, 1};
  shape.insert(shape.begin(), static_cast<int64_t>(c.feature_maps.size()));
  tensors.leaves.push_back({"far_weight", draw(shape)});
}

torch::autograd::variable_list gradients(const at::Tensor& out, const CaseTensors& tensors) {
  torch::autograd::variable_list leaves;
  for (const NamedTensor& leaf : tensors.leaves) leaves.push_back(leaf.tensor);
  return torch::autograd::grad({out}, leaves, {tensors.upstream.to(out.scalar_type())},
                               /*retain_graph=*/std::nullopt, /*create_graph=*/false,
                               /*allow_unused=*/true);
}

template <typename Change>
CaseTensors with_leaves(const CaseTensors& tensors, const Change& change) {
  CaseTensors copy = tensors;
  for (NamedTensor& leaf : copy.leaves) leaf.tensor = change(leaf).detach();
  connect(copy, tensors.inputs.q.size(2));
  return copy;
}

}  // namespace

CaseTensors make_inputs(const AttentionCase& attention_case, c10::ScalarType dtype, uint64_t seed,
                        const c10::Device& device) {
  const AttentionCase& c = attention_case;
  const Source source(seed, device);
  CaseTensors tensors;
  tensors.options = options_of(c);
  if (c.mask != MaskPattern::kNone) tensors.inputs.token_mask = live_tokens(c, seed).to(device);
  const auto draw = [&](int64_t heads, int64_t dim) {
    at::Tensor values = source.normal({c.batch, c.length, heads, dim});
    if (tensors.inputs.token_mask) poison(values, *tensors.inputs.token_mask);
    return laid_out(values.to(dtype), c.layout);
  };
  const int64_t key_heads = c.shared_key_heads ? 1 : c.heads;
  tensors.leaves.push_back({"q", draw(c.heads, c.head_dim)});
  if (c.extreme_query != 0) {
    tensors.leaves.back().tensor.select(1, c.length / 3).fill_(c.extreme_query);
    tensors.leaves.back().tensor.select(1, c.length / 2).fill_(-c.extreme_query);
  }
  tensors.leaves.push_back({"k", draw(key_heads, c.head_dim)});
  tensors.leaves.push_back({"v", draw(key_heads, c.channels())});
  draw_weights(tensors, c, dtype, source);
  tensors.upstream = source.normal({c.batch, c.length, c.heads, c.channels()}).to(dtype);
  if (c.near_dropout > 0) {
    tensors.inputs.dropout_seed =
        at::full({1}, static_cast<int64_t>(seed) + 11, at::device(device).dtype(at::kLong));
  }
  connect(tensors, c.heads);
  return tensors;
}

CaseTensors in_double(const CaseTensors& tensors) {
  return with_leaves(tensors, [](const NamedTensor& leaf) {
    return leaf.tensor.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  });
}

CaseTensors on_device(const CaseTensors& tensors, const c10::Device& device) {
  CaseTensors moved = tensors;
  moved.upstream = tensors.upstream.to(device);
  if (tensors.inputs.token_mask) moved.inputs.token_mask = tensors.inputs.token_mask->to(device);
  if (tensors.inputs.dropout_seed)
    moved.inputs.dropout_seed = tensors.inputs.dropout_seed->to(device);
  return with_leaves(moved, [&](const NamedTensor& leaf) { return leaf.tensor.to(device); });
}

CaseTensors in_layout(const CaseTensors& tensors, Layout layout) {
  return with_leaves(tensors, [layout](const NamedTensor& leaf) {
    return leaf.name.size() == 1 ? laid_out(leaf.tensor, layout) : leaf.tensor;
  });
}

std::vector<NamedTensor> evaluate(const AttentionFunction& attention, const CaseTensors& tensors) {
  const at::Tensor out = attention(tensors.inputs, tensors.weights, tensors.options);
  torch::autograd::variable_list found(tensors.leaves.size());
  if (out.requires_grad()) found = gradients(out, tensors);
  std::vector<NamedTensor> results = {{"out", out.detach()}};
  for (size_t i = 0; i < found.size(); ++i) {
    const NamedTensor& leaf = tensors.leaves[i];
    results.push_back(
        {"d_" + leaf.name, found[i].defined() ? found[i] : at::zeros_like(leaf.tensor)});
  }
  return results;
}

void run_forward_backward(const AttentionFunction& attention, const CaseTensors& tensors) {
  gradients(attention(tensors.inputs, tensors.weights, tensors.options), tensors);
}

void run_forward(const AttentionFunction& attention, const CaseTensors& tensors) {
  const c10::NoGradGuard no_gradients;
  attention(tensors.inputs, tensors.weights, tensors.options);
}

}  // namespace fmmformer::bench
