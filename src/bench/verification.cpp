// SPDX-License-Identifier: Apache-2.0
#include "bench/verification.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "bench/fast_weight_peers.h"
#include "bench/plain_torch.h"
#include "fmmformer/attention/fast_weight_reference.h"
#include "fmmformer/attention/fmm_reference.h"

namespace fmmformer::bench {
namespace {

using Tensors = std::vector<NamedTensor>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kShortestForRelativeRms = 16;
// Gradients that are 0 in theory (a softmax over one key) come out of the reference around 1e-17.
constexpr double kSmallestScale = 1e-9;

double relative_rms_allowed(c10::ScalarType dtype, bool is_output) {
  switch (dtype) {
    case c10::kDouble:
      return 1e-12;
    case c10::kFloat:
      return 1e-5;
    default:
      return is_output ? 3.3e-3 : 6e-3;  // bf16, and fp16 by the same bar
  }
}

double epsilon(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kDouble:
      return std::numeric_limits<double>::epsilon();
    case c10::kBFloat16:
      return std::ldexp(1.0, -7);
    case c10::kHalf:
      return std::ldexp(1.0, -10);
    default:
      return std::numeric_limits<float>::epsilon();
  }
}

double largest(const at::Tensor& x) {
  return x.numel() == 0 ? 0 : x.abs().max().to(at::kDouble).item<double>();
}

double root_mean_square(const at::Tensor& x) {
  return x.numel() == 0 ? 0 : x.square().mean().sqrt().item<double>();
}

/// What stays even when plain torch happens to be exact: the rounding of the result, and some of
/// the arithmetic (which is fp32 or better) at the size that intermediate values have.
double tiny(c10::ScalarType dtype, double scale) {
  const double arithmetic = std::min(epsilon(dtype), epsilon(c10::kFloat));
  return 0.5 * epsilon(dtype) * scale + 16 * arithmetic * std::max(1.0, scale);
}

bool sees_one_key(const AttentionCase& c) {
  const FmmOptions options = options_of(c);
  if (!options.window || options.window->left > 0) return false;
  return options.causal || options.window->right == 0;
}

struct Evaluations {
  Tensors ours;
  Tensors exact;
  std::vector<at::Tensor> sizes;  // what errors are measured against, if not `exact` itself
  Tensors plain;                  // none where nobody needs a yardstick
  Tensors plain_exact;  // the same expression in double; not `exact`, because dropout draws another
                        // mask
};

/// Every token adds a term to a blend weight's gradient, and the handful of sums may come out far
/// smaller than their terms by chance; no arithmetic is exact to a share of that. Their size is at
/// least what terms of random signs add up to: the root of the sum of their squares.
at::Tensor size_of_weight_gradient(const CaseTensors& tensors, const std::string& name,
                                   const at::Tensor& exact) {
  const c10::NoGradGuard no_gradients;
  const bool is_near = name == "d_near_weight";
  const at::Tensor& weight = is_near ? *tensors.weights.near_weight : *tensors.weights.far_weight;
  const auto squares_of_terms = [&](const BlendWeights& one_field) {
    const at::Tensor field = fmm_attention_reference(tensors.inputs, one_field, tensors.options);
    const at::Tensor terms = tensors.upstream.to(at::kDouble) * field;
    const bool by_channel = weight.dim() > 0 && weight.size(-1) > 1;
    return (by_channel ? terms : terms.sum(-1, /*keepdim=*/true))
        .square()
        .sum(at::IntArrayRef{0, 1});
  };
  const int64_t maps = static_cast<int64_t>(tensors.options.feature_maps.size());
  BlendWeights one_field{.near_weight = at::zeros({}, weight.options()),
                         .far_weight = at::zeros({maps, 1, 1}, weight.options())};
  at::Tensor squares;
  if (is_near) {
    one_field.near_weight->fill_(1);
    squares = at::sum_to(squares_of_terms(one_field), weight.sizes());
  } else {
    TORCH_INTERNAL_ASSERT(weight.dim() == 3 && weight.size(0) == maps);
    std::vector<at::Tensor> by_map;
    for (int64_t l = 0; l < maps; ++l) {
      one_field.far_weight->zero_().select(0, l).fill_(1);
      by_map.push_back(at::sum_to(squares_of_terms(one_field), weight[l].sizes()));
    }
    squares = at::stack(by_map);
  }
  return at::maximum(exact.abs(), squares.sqrt());
}

std::vector<at::Tensor> sizes_of(const Tensors& exact, const CaseTensors& tensors) {
  std::vector<at::Tensor> sizes;
  for (const NamedTensor& one : exact) {
    sizes.push_back(one.name.ends_with("_weight")
                        ? size_of_weight_gradient(tensors, one.name, one.tensor)
                        : one.tensor);
  }
  return sizes;
}

bool is_held_by_rms(const AttentionCase& c, const at::Tensor& exact) {
  return c.length >= kShortestForRelativeRms && root_mean_square(exact) > kSmallestScale &&
         !sees_one_key(c);
}

/// The reference is no truth for the last digits of a kernel in its own type, nor is plain torch a
/// yardstick.
bool needs_plain_torch(const AttentionCase& c, c10::ScalarType dtype, const Tensors& exact) {
  return dtype != c10::kDouble || !std::ranges::all_of(exact, [&](const NamedTensor& one) {
           return is_held_by_rms(c, one.tensor);
         });
}

void check_tensor(CaseReport& report, const AttentionCase& c, const Evaluations& all, size_t i) {
  const std::string& name = all.ours[i].name;
  const at::Tensor& exact = all.exact[i].tensor;
  const at::Tensor& size = all.sizes.empty() ? exact : all.sizes[i];
  const at::Tensor error = all.ours[i].tensor.to(at::kDouble) - exact;
  if (is_held_by_rms(c, exact)) {
    report.checks.push_back({name, kRelativeRms, root_mean_square(error) / root_mean_square(size),
                             relative_rms_allowed(report.dtype, name == "out")});
    if (report.dtype == c10::kDouble) return;
  }
  const double plain_error =
      largest(all.plain[i].tensor.to(at::kDouble) - all.plain_exact[i].tensor);
  // Plain fp16 may overflow where our sums, in fp32, do not: then it is no yardstick.
  const double allowed =
      std::isfinite(plain_error) ? 2 * plain_error + tiny(report.dtype, largest(size)) : kInfinity;
  const double found = largest(error);
  report.checks.push_back(
      {name, kTwicePlainTorch, std::isfinite(found) ? found : std::nan(""), allowed});
}

void check_dead_tokens(CaseReport& report, const at::Tensor& live, const Tensors& ours) {
  for (const NamedTensor& result : ours) {
    if (result.name.ends_with("_weight")) continue;  // a weight's gradient belongs to no token
    const at::Tensor channels =
        result.tensor.dim() == 3 ? result.tensor.unsqueeze(-1) : result.tensor;  // beta has none
    const at::Tensor dead = channels.masked_select(~live.unsqueeze(-1).unsqueeze(-1));
    report.checks.push_back({result.name, kDeadTokens, largest(dead), 0});
  }
}

Tensors on_cpu(Tensors tensors) {
  for (NamedTensor& one : tensors) one.tensor = one.tensor.cpu();
  return tensors;
}

using Moment = std::chrono::steady_clock::time_point;

CaseReport report_on(const AttentionCase& c, c10::ScalarType dtype, const Evaluations& all,
                     const std::optional<at::Tensor>& live, Moment start) {
  CaseReport report{.name = c.name, .dtype = dtype};
  for (size_t i = 0; i < all.ours.size(); ++i) check_tensor(report, c, all, i);
  if (live) check_dead_tokens(report, *live, all.ours);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace

double Check::share() const {
  if (std::isnan(error)) return kInfinity;
  if (allowed == 0) return error == 0 ? 0 : kInfinity;
  return error / allowed;
}

bool CaseReport::passed() const { return std::ranges::all_of(checks, &Check::passed); }

const Check& CaseReport::worst() const {
  return *std::ranges::max_element(checks, {}, &Check::share);
}

CaseReport verify_case(const AttentionCase& attention_case, c10::ScalarType dtype, uint64_t seed,
                       const c10::Device& device) {
  return verify_case(attention_case, dtype, seed, fmm_attention, device);
}

CaseReport verify_case(const AttentionCase& attention_case, c10::ScalarType dtype, uint64_t seed,
                       const AttentionFunction& attention, const c10::Device& device) {
  const auto start = std::chrono::steady_clock::now();
  const CaseTensors tensors = make_inputs(attention_case, dtype, seed);
  const CaseTensors exact_tensors = in_double(tensors);
  Evaluations all{
      .ours = on_cpu(evaluate(attention, device.is_cpu() ? tensors : on_device(tensors, device))),
      .exact = evaluate(fmm_attention_reference, exact_tensors)};
  if (needs_plain_torch(attention_case, dtype, all.exact)) {
    all.plain = evaluate(plain_torch_attention, tensors);
    all.plain_exact = evaluate(plain_torch_attention, exact_tensors);
  }
  const std::optional<at::Tensor>& live = tensors.inputs.token_mask;
  const CaseReport report = report_on(attention_case, dtype, all, live, start);
  if (report.passed()) return report;
  all.sizes = sizes_of(all.exact, exact_tensors);  // these take more references: only where asked
  return report_on(attention_case, dtype, all, live, start);
}

CaseReport verify_case(const FastWeightCase& one, c10::ScalarType dtype, uint64_t seed,
                       const c10::Device& device) {
  return verify_case(one, dtype, seed, fast_weight_attention, device);
}

CaseReport verify_case(const FastWeightCase& one, c10::ScalarType dtype, uint64_t seed,
                       const FastWeightFunction& attention, const c10::Device& device) {
  const auto start = std::chrono::steady_clock::now();
  const FastWeightTensors tensors = make_inputs(one, dtype, seed);
  const FastWeightTensors exact_tensors = in_double(tensors);
  Evaluations all{
      .ours = on_cpu(evaluate(attention, device.is_cpu() ? tensors : on_device(tensors, device))),
      .exact = evaluate(fast_weight_attention_reference, exact_tensors)};
  if (needs_plain_torch(one.attention, dtype, all.exact)) {
    all.plain = evaluate(plain_torch_fast_weight, tensors);
    all.plain_exact = evaluate(plain_torch_fast_weight, exact_tensors);
  }
  return report_on(one.attention, dtype, all, tensors.inputs.token_mask, start);
}

}  // namespace fmmformer::bench
