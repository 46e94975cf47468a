// SPDX-License-Identifier: Apache-2.0
// One decoding step on the CPU: the formula of fast_weight_attention.h for a single token.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/cpu/parallel.h"
#include "attention/fast_weight/fast_weight_schema.h"
#include "attention/fast_weight/fast_weight_step.h"
#include "attention/feature_map.h"
#include "attention/problem.h"

namespace fmmformer {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// What the running sum of keys becomes as a divisor.
template <typename Real>
Real divisor_of(const FastWeightOptions& options, Real sum) {
  const Real eps = static_cast<Real>(options.eps);
  if (!is_signed(options.feature_map)) return sum + eps;
  return std::abs(sum) > eps ? sum : std::copysign(eps, sum);
}

template <typename Real>
void to_features(const FastWeightOptions& options, const Real* x, int64_t dim, Real* features) {
  Real sum = 0;
  for (int64_t c = 0; c < dim; ++c) sum += features[c] = feature_of(options.feature_map, x[c]);
  if (!options.unit_features) return;
  const Real scale = sum == Real(0) ? Real(0) : Real(1) / sum;
  for (int64_t c = 0; c < dim; ++c) features[c] *= scale;
}

/// One (batch entry, head): its token, and its part of the state.
template <typename Real>
struct HeadStep {
  const Real *q, *k, *v;
  Real beta;
  bool first;  // no real token came before
  Real *memory, *key_sums;
};

template <typename Real>
void step_head(const FastWeightProblem& problem, const HeadStep<Real>& head, cpu::Arena& arena,
               Real* out) {
  const FastWeightOptions& options = problem.options;
  const int64_t dim = problem.head_dim, value_dim = problem.value_dim;
  arena.reset();
  Real *x = arena.take<Real>(dim), *y = arena.take<Real>(dim);
  Real* written = arena.take_zeros<Real>(value_dim);
  to_features(options, head.k, dim, x);
  to_features(options, head.q, dim, y);
  Real overlap = 0, row_sum = 0;
  for (int64_t c = 0; c < dim; ++c) {
    const Real* row = head.memory + c * value_dim;
    for (int64_t e = 0; e < value_dim; ++e) written[e] += x[c] * row[e];  // so far: what is read
    overlap += x[c] * head.key_sums[c];
    head.key_sums[c] += x[c];
    row_sum += y[c] * head.key_sums[c];
  }
  Real write = head.beta, erase = head.beta;
  if (options.normaliser == FastWeightNormaliser::kOutputAndKey) {
    if (head.first) overlap = 1;
    const Real norm = divisor_of(options, overlap);
    write = head.beta * overlap / norm;
    erase = write / norm;
  }
  for (int64_t e = 0; e < value_dim; ++e) written[e] = write * head.v[e] - erase * written[e];
  const Real norm =
      options.normaliser == FastWeightNormaliser::kNone ? Real(1) : divisor_of(options, row_sum);
  const Real scale = static_cast<Real>(options.far_scale) / norm;
  for (int64_t c = 0; c < dim; ++c) {
    Real* row = head.memory + c * value_dim;
    const Real factor = scale * y[c];
    for (int64_t e = 0; e < value_dim; ++e) {
      row[e] += x[c] * written[e];
      out[e] += factor * row[e];
    }
  }
}

template <typename Real>
Tensor step(const FastWeightProblem& problem, const FastWeightInputs& token,
            FastWeightState& state) {
  constexpr at::ScalarType kReal = c10::CppTypeToScalarType<Real>::value;
  const int64_t heads = problem.heads, dim = problem.head_dim, value_dim = problem.value_dim;
  const Tensor q = token.q.to(kReal).contiguous(), k = token.k.to(kReal).contiguous(),
               v = token.v.to(kReal).contiguous(), beta = token.beta.to(kReal).contiguous();
  const Tensor mask = token.token_mask ? token.token_mask->contiguous() : Tensor();
  Tensor out = at::zeros({problem.batch, heads, value_dim}, kReal);
  cpu::parallel_tasks(
      problem.batch * heads, 4 * dim * value_dim, [&](int64_t pair, cpu::Arena& arena) {
        const int64_t b = pair / heads;
        if (mask.defined() && !mask.const_data_ptr<bool>()[b]) return;
        const HeadStep<Real> head{.q = q.const_data_ptr<Real>() + pair * dim,
                                  .k = k.const_data_ptr<Real>() + pair * dim,
                                  .v = v.const_data_ptr<Real>() + pair * value_dim,
                                  .beta = beta.const_data_ptr<Real>()[pair],
                                  .first = state.tokens.const_data_ptr<int64_t>()[b] == 0,
                                  .memory = state.memory.data_ptr<Real>() + pair * dim * value_dim,
                                  .key_sums = state.key_sums.data_ptr<Real>() + pair * dim};
        step_head(problem, head, arena, out.data_ptr<Real>() + pair * value_dim);
      });
  mask.defined() ? state.tokens.add_(mask) : state.tokens.add_(1);
  return out.to(token.q.scalar_type());
}

Tensor step_cpu(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                const OptionalTensor& token_mask, const Tensor& memory, const Tensor& key_sums,
                const Tensor& tokens, at::IntArrayRef codes, at::ArrayRef<double> scales) {
  const FastWeightInputs token{q, k, v, beta, token_mask};
  FastWeightState state{memory, key_sums, tokens};
  const FastWeightProblem problem =
      checked_step(token, state, unpack_fast_weight_options(codes, scales));
  return q.scalar_type() == at::kDouble ? step<double>(problem, token, state)
                                        : step<float>(problem, token, state);
}

TORCH_LIBRARY_IMPL(fmmformer, CPU, m) { m.impl("fast_weight_attention_step_packed", &step_cpu); }

}  // namespace
}  // namespace fmmformer
