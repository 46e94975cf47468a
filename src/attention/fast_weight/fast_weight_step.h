// SPDX-License-Identifier: Apache-2.0
// What every backend's decoding step begins with: one token and a state, read once and checked
// once.
#pragma once

#include "attention/fast_weight/fast_weight_problem.h"
#include "fmmformer/attention/fast_weight_decode.h"

namespace fmmformer {

/// The problem of a sequence of length 1. Throws c10::ValueError when token, state and options do
/// not fit.
FastWeightProblem checked_step(const FastWeightInputs& token, const FastWeightState& state,
                               const FastWeightOptions& options);

}  // namespace fmmformer
