// SPDX-License-Identifier: Apache-2.0
#include "bench/fast_weight_cases.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>
#include <utility>

namespace fmmformer::bench {
namespace {

using enum FeatureMap;
using FastWeightCases = std::vector<FastWeightCase>;
constexpr auto kNone = FastWeightNormaliser::kNone;
constexpr auto kOutput = FastWeightNormaliser::kOutput;
constexpr auto kOutputAndKey = FastWeightNormaliser::kOutputAndKey;

/// The plain case, changed by `change`.
template <typename Change>
void add(FastWeightCases& cases, const std::string& name, FastWeightNormaliser normaliser,
         const Change& change) {
  AttentionCase one{.name = "fast_weight_" + name,
                    .bandwidth = 0,
                    .feature_maps = {kElu},
                    .unit_features = true,
                    .eps = 1e-5,
                    .weights = WeightShape::kNone};
  change(one);
  // The reference keeps a state a token: of the long ones, only the shortest that has two segments
  // is quick.
  if (one.length > 500 && one.length != 513) std::erase(one.tags, CaseTag::kQuick);
  cases.push_back({std::move(one), normaliser});
}

void add_options(FastWeightCases& cases) {
  for (const auto& entry : EnumTable<FastWeightNormaliser>::entries()) {
    const std::string name(entry.name);
    add(cases, name, entry.value, [](auto&) {});
    add(cases, name + "_scaled", entry.value,
        [](auto& c) { c.far_scale = 0.25, c.eps = 0.5, c.length = 64; });
    // Raw features grow a state by up to beta |f|^2 - 1 a token: few channels keep that below 1.
    add(cases, name + "_raw_features", entry.value, [](auto& c) {
      c.unit_features = false, c.head_dim = 2, c.value_dim = 8, c.length = 24, c.eps = 0.5;
    });
    for (const FeatureMap map : {kTanh, kIdentity}) {
      add(cases, name + "_map_" + std::string(enum_name(map)), entry.value, [map](auto& c) {
        // An eps so large that both branches of a signed map's guard are taken.
        c.feature_maps = {map}, c.unit_features = false, c.eps = 4.0;
        c.head_dim = 3, c.value_dim = 5, c.length = 40;
      });
    }
  }
  for (const FeatureMap map : {kEluFlip, kTanh1, kRelu, kSoftplus}) {
    add(cases, "map_" + std::string(enum_name(map)), kOutput,
        [map](auto& c) { c.feature_maps = {map}; });
  }
  add(cases, "unit_features_with_zero_sum", kOutput,
      [](auto& c) { c.feature_maps = {kRelu}, c.head_dim = 1, c.value_dim = 8, c.eps = 0.1; });
}

void add_masks_and_layouts(FastWeightCases& cases) {
  const std::pair<MaskPattern, const char*> patterns[] = {{MaskPattern::kLeft, "left"},
                                                          {MaskPattern::kRight, "right"},
                                                          {MaskPattern::kInterior, "interior"},
                                                          {MaskPattern::kRandom, "random"},
                                                          {MaskPattern::kAllDead, "all_dead"}};
  for (const auto& [pattern, name] : patterns) {
    add(cases, std::string("mask_") + name, kOutputAndKey,
        [pattern = pattern](auto& c) { c.length = 130, c.mask = pattern; });
  }
  add(cases, "mask_random_output", kOutput,
      [](auto& c) { c.length = 700, c.mask = MaskPattern::kRandom; });
  add(cases, "head_first_layout", kOutput, [](auto& c) { c.layout = Layout::kBhnd; });
  add(cases, "shared_key_heads", kOutput, [](auto& c) { c.shared_key_heads = true; });
  add(cases, "everything_at_once", kOutputAndKey, [](auto& c) {
    c.length = 600, c.head_dim = 48, c.value_dim = 33, c.far_scale = 0.3;
    c.mask = MaskPattern::kRandom, c.layout = Layout::kBhnd;
  });
}

void add_fast_weight_shapes(FastWeightCases& cases) {
  for (const int64_t length :
       {1, 2, 3, 15, 16, 31, 32, 33, 64, 65, 127, 130, 511, 512, 513, 1025, 1537}) {
    add(cases, "length_" + std::to_string(length), length % 2 == 0 ? kOutputAndKey : kOutput,
        [length](auto& c) { c.length = length, c.batch = length > 500 ? 1 : 2; });
  }
  for (const int64_t head_dim : {1, 3, 17, 32, 64, 80, 96, 128, 256}) {
    add(cases, "head_dim_" + std::to_string(head_dim), kOutput,
        [head_dim](auto& c) { c.batch = 1, c.length = 70, c.head_dim = head_dim; });
  }
  add(cases, "value_dim_wider", kOutput, [](auto& c) { c.head_dim = 32, c.value_dim = 80; });
  add(cases, "value_dim_narrower", kOutput, [](auto& c) { c.head_dim = 64, c.value_dim = 17; });
  add(cases, "value_dim_1", kNone, [](auto& c) { c.head_dim = 32, c.value_dim = 1; });
  add(cases, "many_heads", kOutput,
      [](auto& c) { c.batch = 5, c.length = 40, c.heads = 13, c.head_dim = 8; });
}

/// Batch entries of the paper's language model, and the shape of the other timings.
void add_fast_weight_timing(FastWeightCases& cases) {
  add(cases, "wikitext", kOutput, [](auto& c) {
    c.batch = 2, c.length = 256, c.heads = 8, c.head_dim = 16, c.far_scale = 0.25;
    c.dtypes = {c10::kFloat, c10::kBFloat16};
    c.tags = {CaseTag::kVerify, CaseTag::kQuick, CaseTag::kPaper, CaseTag::kTiming};
  });
  for (const int64_t length : {2048, 8192}) {
    add(cases, std::to_string(length), kOutput, [length](auto& c) {
      c.batch = 1, c.length = length, c.heads = 8, c.head_dim = 64;
      c.dtypes = {c10::kFloat}, c.tags = {CaseTag::kTiming};
    });
  }
}

/// Timed on a GPU. Two have limits: the paper's language model, and one long sequence.
void add_gpu_timing(FastWeightCases& cases) {
  const auto add_gpu = [&](const char* name, int64_t batch, int64_t length, int64_t head_dim,
                           std::optional<double> limit) {
    add(cases, std::string("gpu_") + name, kOutput, [&](auto& c) {
      c.batch = batch, c.length = length, c.heads = 8, c.head_dim = head_dim;
      c.dtypes = {c10::kBFloat16, c10::kFloat}, c.tags = {CaseTag::kGpu};
      if (limit) c.gpu_limit = {.seconds = *limit};
    });
  };
  add_gpu("wikitext", 96, 256, 16, 0.12e-3);
  add_gpu("copy", 64, 512, 32, std::nullopt);
  add_gpu("2048", 8, 2048, 64, std::nullopt);
  add_gpu("65536", 1, 65536, 64, 4e-3);
}

void connect(FastWeightTensors& tensors, int64_t heads) {
  for (NamedTensor& leaf : tensors.leaves) {
    at::Tensor& t = leaf.tensor;
    t.requires_grad_(true);
    if (leaf.name == "q") tensors.inputs.q = t;
    if (leaf.name == "k") tensors.inputs.k = t.expand({t.size(0), t.size(1), heads, t.size(3)});
    if (leaf.name == "v") tensors.inputs.v = t.expand({t.size(0), t.size(1), heads, t.size(3)});
    if (leaf.name == "beta") tensors.inputs.beta = t;
  }
}

}  // namespace

const FastWeightCases& fast_weight_cases() {
  static const FastWeightCases cases = [] {
    FastWeightCases made;
    add_options(made);
    add_masks_and_layouts(made);
    add_fast_weight_shapes(made);
    add_fast_weight_timing(made);
    add_gpu_timing(made);
    return made;
  }();
  return cases;
}

FastWeightCases fast_weight_cases_with_tag(CaseTag tag) {
  FastWeightCases chosen;
  for (const FastWeightCase& one : fast_weight_cases()) {
    if (one.attention.has_tag(tag)) chosen.push_back(one);
  }
  return chosen;
}

std::string shape_text(const FastWeightCase& one) {
  const AttentionCase& c = one.attention;
  std::string text = std::to_string(c.batch) + "x" + std::to_string(c.length) + "x" +
                     std::to_string(c.heads) + "x" + std::to_string(c.head_dim);
  if (c.channels() != c.head_dim) text.append(":").append(std::to_string(c.channels()));
  return text.append(" ").append(enum_name(one.normaliser));
}

FastWeightTensors make_inputs(const FastWeightCase& one, c10::ScalarType dtype, uint64_t seed,
                              const c10::Device& device) {
  const AttentionCase& c = one.attention;
  const CaseTensors drawn = make_inputs(c, dtype, seed, device);
  FastWeightTensors tensors;
  tensors.options = {.feature_map = c.feature_maps.front(),
                     .unit_features = c.unit_features,
                     .normaliser = one.normaliser,
                     .eps = c.eps,
                     .far_scale = c.far_scale};
  tensors.inputs.token_mask = drawn.inputs.token_mask;
  tensors.leaves = drawn.leaves;
  tensors.upstream = drawn.upstream;
  // One channel of another draw; dead tokens' gates are NaN.
  const AttentionCase gates{.name = "beta",
                            .batch = c.batch,
                            .length = c.length,
                            .heads = c.heads,
                            .head_dim = 1,
                            .layout = c.layout};
  at::Tensor beta =
      at::sigmoid(make_inputs(gates, c10::kDouble, seed + 1, device).inputs.q.detach()).squeeze(-1);
  if (drawn.inputs.token_mask) {
    beta.masked_fill_(~drawn.inputs.token_mask->unsqueeze(-1),
                      std::numeric_limits<double>::quiet_NaN());
  }
  tensors.leaves.push_back({"beta", beta.to(dtype)});
  connect(tensors, c.heads);
  return tensors;
}

FastWeightTensors in_double(const FastWeightTensors& tensors) {
  FastWeightTensors copy = tensors;
  for (NamedTensor& leaf : copy.leaves)
    leaf.tensor = leaf.tensor.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).detach();
  connect(copy, tensors.inputs.q.size(2));
  return copy;
}

FastWeightTensors on_device(const FastWeightTensors& tensors, const c10::Device& device) {
  FastWeightTensors moved = tensors;
  moved.upstream = tensors.upstream.to(device);
  if (tensors.inputs.token_mask) moved.inputs.token_mask = tensors.inputs.token_mask->to(device);
  for (NamedTensor& leaf : moved.leaves) leaf.tensor = leaf.tensor.detach().to(device);
  connect(moved, tensors.inputs.q.size(2));
  return moved;
}

std::vector<NamedTensor> evaluate(const FastWeightFunction& attention,
                                  const FastWeightTensors& tensors) {
  torch::autograd::variable_list leaves;
  for (const NamedTensor& leaf : tensors.leaves) leaves.push_back(leaf.tensor);
  const at::Tensor out = attention(tensors.inputs, tensors.options);
  const torch::autograd::variable_list found = torch::autograd::grad(
      {out}, leaves, {tensors.upstream.to(out.scalar_type())}, /*retain_graph=*/std::nullopt,
      /*create_graph=*/false, /*allow_unused=*/true);
  std::vector<NamedTensor> results = {{"out", out.detach()}};
  for (size_t i = 0; i < found.size(); ++i) {
    const NamedTensor& leaf = tensors.leaves[i];
    results.push_back(
        {"d_" + leaf.name, found[i].defined() ? found[i] : at::zeros_like(leaf.tensor)});
  }
  return results;
}

}  // namespace fmmformer::bench
