// SPDX-License-Identifier: Apache-2.0
// What every backend's decoding step begins with: one token and a state, read once and checked
// once.
#pragma once

#include "attention/problem.h"
#include "fmmformer/attention/fmm_decode.h"

namespace fmmformer {

struct StepCall {
  Problem problem;        // of a sequence of length 1, its window as wide as the state's
  AttentionInputs token;  // q, k, v: [batch, heads, dim]
  BlendWeights weights;
  FmmState state;

  int64_t left() const { return problem.options.window ? problem.options.window->left : 0; }
};

/// Throws c10::ValueError when token, state and options do not fit.
StepCall checked_step(const AttentionInputs& token, const BlendWeights& weights,
                      const FmmState& state, FmmOptions options);

}  // namespace fmmformer
