// SPDX-License-Identifier: Apache-2.0
// The shapes and options of one call, read once and checked once, by every backend.
#pragma once

#include <cstdint>

#include "fmmformer/attention/fast_weight_attention.h"

namespace fmmformer {

struct FastWeightProblem {
  int64_t batch = 0;
  int64_t length = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t value_dim = 0;
  FastWeightOptions options;
};

/// Throws c10::ValueError in the name of `function` when something does not fit.
FastWeightProblem checked_problem(const char* function, const FastWeightInputs& inputs,
                                  const FastWeightOptions& options);

/// The part of the check that needs no batch and no length, which are symbolic under torch.compile.
void check_kinds(const char* function, const FastWeightInputs& inputs);

/// The part of the check that needs no tensor.
void check_options(const char* function, const FastWeightOptions& options);

}  // namespace fmmformer
