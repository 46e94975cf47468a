// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "fmmformer/attention/fmm_decode.h"

namespace fmmformer {

/// What a causal model remembers of a text while it goes on with it. It begins empty and travels
/// with a Pass: the first pass reads any number of tokens, every later one a single token, which
/// sees all those before it. Its size depends on `longest`, not on the tokens so far.
struct DecodingMemory {
  int64_t longest = 0;  // tokens; softmax attention has room for the key of each but the last
  int64_t tokens = 0;   // so far
  std::vector<std::optional<FmmState>> layers = {};  // by the number of the attention layer

  int64_t bytes() const;
};

}  // namespace fmmformer
