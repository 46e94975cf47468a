// SPDX-License-Identifier: Apache-2.0
// One decoding step on the CPU: the formula of fmm_attention.h for a single query, token by token.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attention/cpu/parallel.h"
#include "attention/feature_map.h"
#include "attention/fmm/cpu/blend_weights.h"
#include "attention/fmm/fmm_schema.h"
#include "attention/fmm/fmm_step.h"

namespace fmmformer {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// Where a (batch entry, head)'s part of the state lies. Scalar: the type of q, k, v; Real: that of
// the sums.
template <typename Scalar, typename Real>
struct HeadState {
  Scalar *keys, *values;  // slots of this head, `slot_stride` and `value_slot_stride` apart
  int64_t slot_stride, value_slot_stride;
  const bool* live;
  Real *sums, *key_sums;
};

template <typename Scalar, typename Real>
void add_near(const Problem& problem, const HeadState<Scalar, Real>& state, const Real* q,
              const Real* k, const Real* v, const Real* weight, Real* out) {
  const int64_t left = problem.options.window->left, dim = problem.head_dim,
                value_dim = problem.value_dim;
  const Real scale = static_cast<Real>(*problem.options.near_scale);
  std::vector<Real> scores(left + 1, Real(0));
  Real peak = -std::numeric_limits<Real>::infinity();
  for (int64_t s = 0; s <= left; ++s) {
    if (s < left && !state.live[s]) continue;
    Real score = 0;
    for (int64_t c = 0; c < dim; ++c) {
      score += q[c] * (s < left ? static_cast<Real>(state.keys[s * state.slot_stride + c]) : k[c]);
    }
    scores[s] = score * scale;
    peak = std::max(peak, scores[s]);
  }
  Real total = 0;
  std::vector<Real> sum(value_dim, Real(0));
  for (int64_t s = 0; s <= left; ++s) {
    if (s < left && !state.live[s]) continue;
    const Real probability = std::exp(scores[s] - peak);
    total += probability;
    for (int64_t e = 0; e < value_dim; ++e) {
      sum[e] +=
          probability *
          (s < left ? static_cast<Real>(state.values[s * state.value_slot_stride + e]) : v[e]);
    }
  }
  for (int64_t e = 0; e < value_dim; ++e) out[e] += weight[e] * sum[e] / total;
}

template <typename Real>
std::vector<Real> features_of(const FmmOptions& options, FeatureMap map, const Real* x,
                              int64_t dim) {
  std::vector<Real> features(dim);
  Real sum = 0;
  for (int64_t c = 0; c < dim; ++c) sum += features[c] = feature_of(map, x[c]);
  if (options.unit_features) {
    for (Real& feature : features) feature = sum == Real(0) ? Real(0) : feature / sum;
  }
  return features;
}

template <typename Real>
Real normaliser_of(const FmmOptions& options, FeatureMap map, Real row_sum) {
  if (options.normaliser != Normaliser::kRowSum) return Real(1);
  const Real eps = static_cast<Real>(options.eps);
  if (!is_signed(map)) return row_sum + eps;
  return std::abs(row_sum) >= eps ? row_sum : std::copysign(eps, row_sum);
}

// Adds the token to one map's sums, then reads the query's far field from them.
template <typename Real>
void add_far(const Problem& problem, FeatureMap map, Real* sums, Real* key_sums, const Real* q,
             const Real* k, const Real* v, const Real* weight, Real* out) {
  const int64_t dim = problem.head_dim, value_dim = problem.value_dim;
  const std::vector<Real> q_features = features_of(problem.options, map, q, dim);
  const std::vector<Real> k_features = features_of(problem.options, map, k, dim);
  std::vector<Real> numerator(value_dim, Real(0));
  Real row_sum = 0;
  for (int64_t c = 0; c < dim; ++c, sums += value_dim) {
    key_sums[c] += k_features[c];
    row_sum += q_features[c] * key_sums[c];
    for (int64_t e = 0; e < value_dim; ++e) {
      sums[e] += k_features[c] * v[e];
      numerator[e] += q_features[c] * sums[e];
    }
  }
  const Real factor =
      static_cast<Real>(problem.options.far_scale) / normaliser_of(problem.options, map, row_sum);
  for (int64_t e = 0; e < value_dim; ++e) out[e] += weight[e] * factor * numerator[e];
}

// A token's rows as the arithmetic reads them. Operators of torch take longer than all the rest of
// a step, hence none where nothing is to be done.
Tensor plain_rows(const Tensor& x, at::ScalarType type) {
  return x.scalar_type() == type && x.is_contiguous() ? x : x.to(type).contiguous();
}

template <typename Scalar, typename Real>
void step(StepCall& call, Tensor& out) {
  const Problem& problem = call.problem;
  const AttentionInputs& token = call.token;
  const BlendWeights& weights = call.weights;
  FmmState& state = call.state;
  const FmmOptions& options = problem.options;
  const int64_t heads = problem.heads, dim = problem.head_dim, value_dim = problem.value_dim;
  const int64_t left = call.left();
  int64_t& position = *state.position.data_ptr<int64_t>();
  const int64_t maps = problem.feature_maps();
  TORCH_CHECK_VALUE(position >= 0 && position < std::numeric_limits<int64_t>::max(),
                    "fmm_attention_step: the state's position is ", position,
                    "; allowed is 0 or more; give the state that prefill made");
  const int64_t slot = left > 0 ? position % left : 0;
  const at::ScalarType type = accumulation_type(token.q.scalar_type());
  const auto near_weight = cpu::spread_weight<Real>(weights.near_weight, 1, heads, value_dim);
  const auto far_weight = cpu::spread_weight<Real>(weights.far_weight, maps, heads, value_dim);
  const Tensor q = plain_rows(token.q, type), k = plain_rows(token.k, type),
               v = plain_rows(token.v, type);
  const Tensor mask = token.token_mask ? token.token_mask->contiguous() : Tensor();
  const bool* is_real = mask.defined() ? mask.const_data_ptr<bool>() : nullptr;
  const int64_t cost = (maps * dim + left + 1) * (dim + value_dim);
  cpu::parallel_tasks(problem.batch * heads, cost, [&](int64_t pair, cpu::Arena&) {
    const int64_t b = pair / heads, h = pair % heads;
    std::vector<Real> result(value_dim, Real(0));
    if (!is_real || is_real[b]) {
      const Real* query = q.const_data_ptr<Real>() + pair * dim;
      const Real* key = k.const_data_ptr<Real>() + pair * dim;
      const Real* value = v.const_data_ptr<Real>() + pair * value_dim;
      const HeadState<Scalar, Real> head{
          state.keys.data_ptr<Scalar>() + (b * left * heads + h) * dim,
          state.values.data_ptr<Scalar>() + (b * left * heads + h) * value_dim,
          heads * dim,
          heads * value_dim,
          state.live.const_data_ptr<bool>() + b * left,
          state.far_sums.data_ptr<Real>() + pair * maps * dim * value_dim,
          state.far_key_sums.data_ptr<Real>() + pair * maps * dim};
      if (options.window) {
        add_near(problem, head, query, key, value, near_weight.data() + h * value_dim,
                 result.data());
      }
      for (int64_t l = 0; l < maps; ++l) {
        add_far(problem, options.feature_maps[l], head.sums + l * dim * value_dim,
                head.key_sums + l * dim, query, key, value,
                far_weight.data() + (l * heads + h) * value_dim, result.data());
      }
      if (left > 0) {  // the oldest key has just been seen for the last time
        std::copy_n(key, dim, head.keys + slot * head.slot_stride);
        std::copy_n(value, value_dim, head.values + slot * head.value_slot_stride);
      }
    }
    std::copy_n(result.data(), value_dim, out.data_ptr<Scalar>() + pair * value_dim);
  });
  bool* live = state.live.data_ptr<bool>();
  for (int64_t b = 0; b < (left > 0 ? problem.batch : 0); ++b) {
    live[b * left + slot] = !is_real || is_real[b];
  }
  ++position;
}

Tensor step_cpu(const Tensor& q, const Tensor& k, const Tensor& v,
                const OptionalTensor& near_weight, const OptionalTensor& far_weight,
                const OptionalTensor& token_mask, const Tensor& keys, const Tensor& values,
                const Tensor& live, const Tensor& far_sums, const Tensor& far_key_sums,
                const Tensor& position, at::IntArrayRef codes, at::ArrayRef<double> scales) {
  StepCall call = checked_step(
      {.q = q, .k = k, .v = v, .token_mask = token_mask}, {near_weight, far_weight},
      {keys, values, live, far_sums, far_key_sums, position}, unpack_options(codes, scales));
  Tensor out =
      at::empty({call.problem.batch, call.problem.heads, call.problem.value_dim}, q.options());
  switch (q.scalar_type()) {
    case at::kDouble:
      step<double, double>(call, out);
      break;
    case at::kFloat:
      step<float, float>(call, out);
      break;
    case at::kBFloat16:
      step<at::BFloat16, float>(call, out);
      break;
    default:
      step<at::Half, float>(call, out);
      break;
  }
  return out;
}

TORCH_LIBRARY_IMPL(fmmformer, CPU, m) { m.impl("fmm_attention_step_packed", &step_cpu); }

}  // namespace
}  // namespace fmmformer
