// SPDX-License-Identifier: Apache-2.0
#include "attention/fast_weight/fast_weight_problem.h"

#include <ATen/ATen.h>

#include "attention/problem.h"

namespace fmmformer {
namespace {

// q, k, v, mask and the options that both operators have are checked as fmm_attention's.
AttentionInputs shared_inputs(const FastWeightInputs& inputs) {
  return {.q = inputs.q, .k = inputs.k, .v = inputs.v, .token_mask = inputs.token_mask};
}
FmmOptions shared_options(const FastWeightOptions& options) {
  return {.causal = true,
          .feature_maps = {options.feature_map},
          .unit_features = options.unit_features,
          .eps = options.eps,
          .far_scale = options.far_scale};
}

}  // namespace

void check_options(const char* function, const FastWeightOptions& options) {
  check_options(function, shared_options(options));
}

void check_kinds(const char* function, const FastWeightInputs& inputs) {
  check_kinds(function, shared_inputs(inputs), {});
  const at::Tensor &beta = inputs.beta, &q = inputs.q;
  TORCH_CHECK_VALUE(beta.defined(), function, ": beta is not defined");
  TORCH_CHECK_VALUE(beta.dim() == 3, function, ": beta has ", beta.dim(), " dimensions (",
                    beta.sym_sizes(),
                    "); allowed is 3, [batch, length, heads]: one gate for each token and head");
  TORCH_CHECK_VALUE(at::isFloatingType(beta.scalar_type()), function, ": beta is of type ",
                    beta.scalar_type(), "; allowed are floating types");
  TORCH_CHECK_VALUE(beta.device() == q.device(), function, ": beta is on ", beta.device(),
                    " but q is on ", q.device(), "; move it with .to()");
}

FastWeightProblem checked_problem(const char* function, const FastWeightInputs& inputs,
                                  const FastWeightOptions& options) {
  check_kinds(function, inputs);
  const Problem shared =
      checked_problem(function, shared_inputs(inputs), {}, shared_options(options));
  TORCH_CHECK_VALUE(inputs.beta.sizes() == inputs.q.sizes().slice(0, 3), function,
                    ": beta has shape ", inputs.beta.sizes(),
                    "; allowed is [batch, length, heads] = ", inputs.q.sizes().slice(0, 3));
  return {shared.batch, shared.length, shared.heads, shared.head_dim, shared.value_dim, options};
}

}  // namespace fmmformer
