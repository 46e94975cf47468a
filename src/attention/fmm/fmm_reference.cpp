// SPDX-License-Identifier: Apache-2.0
// The definition of FMM attention, as literally as torch can say it. Slow on purpose: read it
// beside the header.
#include "fmmformer/attention/fmm_reference.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "attention/problem.h"
#include "attention/reference_features.h"

namespace fmmformer {
namespace {

using at::Tensor;

// Philox4x32-7 (Salmon et al., 2011), one counter at a time.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 7; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
  }
  return counter;
}

// [B, H, N, N]: 0 where the probability (b, h, i, j) is dropped, 1 / (1 - p) where it is kept.
Tensor dropout_factors(const Problem& problem, const Tensor& seed_tensor) {
  // In units of 2^-15, of which one is kept at least.
  const double p = std::min(std::floor(problem.options.near_dropout * 32768 + 0.5), 32767.0);
  const auto seed = static_cast<uint64_t>(seed_tensor.item<int64_t>());
  Tensor factors =
      at::empty({problem.batch, problem.heads, problem.length, problem.length}, at::kDouble);
  double* out = factors.data_ptr<double>();
  for (int64_t bh = 0; bh < problem.batch * problem.heads; ++bh) {
    for (int64_t i = 0; i < problem.length; ++i) {
      for (int64_t j = 0; j < problem.length; ++j) {
        // A block serves queries i and i + 8 of sixteen, and keys j, j + 1, j + 8 and j + 9.
        const auto words =
            philox({static_cast<uint32_t>(j / 16 * 4 + j % 8 / 2),
                    static_cast<uint32_t>(i / 16 * 8 + i % 8), static_cast<uint32_t>(bh), 0},
                   {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
        const uint32_t word = words[i / 8 % 2 * 2 + j / 8 % 2];
        const uint32_t bits = (j % 2 == 0 ? word : word >> 16) & 0x7fff;
        *out++ = bits < p ? 0.0 : 1.0 / (1.0 - p / 32768);
      }
    }
  }
  return factors;
}

// softmax over the allowed keys; a row without any gets zeros
Tensor near_field(const Problem& problem, const Tensor& q, const Tensor& k, const Tensor& v,
                  const Tensor& allowed, const std::optional<Tensor>& dropout_seed) {
  const Tensor scores = *problem.options.near_scale * at::matmul(q, k.transpose(-1, -2));
  const Tensor kept = at::where(allowed, scores, -std::numeric_limits<double>::infinity());
  const Tensor peak = at::where(allowed, scores, -1e300).amax(-1, true).detach();
  const Tensor weights = at::where(allowed, (kept - peak).exp(), 0.0);
  const Tensor total = weights.sum(-1, true);
  Tensor probabilities = weights / at::where(total > 0, total, 1.0);
  if (problem.options.near_dropout > 0) {
    probabilities = probabilities * dropout_factors(problem, dropout_seed->cpu()).to(q.device());
  }
  return at::matmul(probabilities, v);
}

Tensor normaliser(const Problem& problem, FeatureMap map, const Tensor& row_sums) {
  switch (problem.options.normaliser) {
    case Normaliser::kRowSum:
      return reference_divisor(map, problem.options.eps, row_sums);
    case Normaliser::kInvSqrtLength:
      return at::full_like(row_sums, std::sqrt(static_cast<double>(problem.length)));
    case Normaliser::kNone:
      return at::ones_like(row_sums);
  }
  TORCH_INTERNAL_ASSERT(false, "normaliser without a definition");
}

Tensor far_field(const Problem& problem, FeatureMap map, const Tensor& q, const Tensor& k,
                 const Tensor& v, const Tensor& reached) {
  const bool unit = problem.options.unit_features;
  const Tensor products = at::matmul(reference_features(map, unit, q),
                                     reference_features(map, unit, k).transpose(-1, -2));
  const Tensor weights = at::where(reached, products, 0.0);
  // A dead row reaches nobody, and is divided by one.
  const Tensor norm =
      at::where(reached.any(-1, true), normaliser(problem, map, weights.sum(-1, true)), 1.0);
  return problem.options.far_scale * at::matmul(weights, v) / norm;
}

}  // namespace

Tensor fmm_attention_reference(const AttentionInputs& inputs, const BlendWeights& weights,
                               const FmmOptions& given) {
  const Problem problem = checked_problem("fmm_attention_reference", inputs, weights, given);
  const FmmOptions& options = problem.options;
  const auto on_device = at::TensorOptions().device(inputs.q.device());
  const Tensor mask = inputs.token_mask.value_or(
      at::ones({problem.batch, problem.length}, on_device.dtype(at::kBool)));
  const Tensor live = mask.view({problem.batch, 1, problem.length, 1});

  // Dead tokens are replaced by zeros first, so that nothing they hold, not even NaN, takes part.
  const auto prepared = [&](const Tensor& x) {
    return at::where(live, x.to(at::kDouble).transpose(1, 2), 0.0);
  };
  const Tensor q = prepared(inputs.q), k = prepared(inputs.k), v = prepared(inputs.v);

  const Tensor positions = at::arange(problem.length, on_device.dtype(at::kLong));
  const Tensor offset = positions.unsqueeze(0) - positions.unsqueeze(1);  // j - i
  const Tensor pairs = at::logical_and(live, live.transpose(-1, -2));     // [B, 1, N, N]
  const Tensor reached = options.causal ? at::logical_and(pairs, offset <= 0) : pairs;

  Tensor out = at::zeros_like(v);
  if (options.window) {
    const Tensor band =
        at::logical_and(offset >= -options.window->left, offset <= options.window->right);
    const Tensor near =
        near_field(problem, q, k, v, at::logical_and(reached, band), inputs.dropout_seed);
    const Tensor weight = weights.near_weight.value_or(at::ones({}, on_device)).to(at::kDouble);
    out = out + weight.expand({problem.heads, problem.value_dim}).unsqueeze(1) * near;
  }
  if (!options.feature_maps.empty()) {
    const Tensor weight = weights.far_weight.value_or(at::ones({}, on_device))
                              .to(at::kDouble)
                              .expand({problem.feature_maps(), problem.heads, problem.value_dim});
    for (int64_t l = 0; l < problem.feature_maps(); ++l) {
      out = out + weight.select(0, l).unsqueeze(1) *
                      far_field(problem, options.feature_maps[l], q, k, v, reached);
    }
  }
  return at::where(live, out, 0.0).transpose(1, 2);
}

}  // namespace fmmformer
