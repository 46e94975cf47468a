// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "fmmformer/attention/fast_weight_decode.h"
#include "fmmformer/attention/fmm_decode.h"

namespace fmmformer {

/// What a causal attention layer remembers: the states of the operators that it has.
struct AttentionState {
  std::optional<FmmState> fields = {};       // near field and linear far fields
  std::optional<FastWeightState> fast = {};  // the fast-weight far field

  bool has_begun() const { return fields || fast; }
};

/// What a causal model remembers of a text while it goes on with it. It begins empty and travels
/// with a Pass: the first pass reads any number of tokens, every later one a single token, which
/// sees all those before it. Its size depends on `longest`, not on the tokens so far.
struct DecodingMemory {
  int64_t longest = 0;  // tokens; softmax attention has room for the key of each but the last
  int64_t tokens = 0;   // so far
  std::vector<AttentionState> layers = {};  // by the number of the attention layer

  AttentionState& layer(int64_t number);
  int64_t bytes() const;
};

}  // namespace fmmformer
