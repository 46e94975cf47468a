// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "fmmformer/models/language_model.h"
#include "fmmformer/models/sampling.h"

namespace fmmformer {

struct GenerationOptions {
  SamplingOptions sampling;
  int64_t tokens = 100;  // how many to add
  uint64_t seed = 1;
  int64_t sample = 0;  // samples of one seed differ by their number
};

/// Called for every token as it is drawn; false: enough.
using OnToken = std::function<bool(int64_t token)>;

/// Goes on with the text that `prompt` begins, token by token, and returns what was added. The same
/// seed gives the same tokens on every run: a draw depends on (seed, sample, number of the token)
/// and the model alone. Constant time and memory a token (models/decoding_session.h).
///
///   const auto model = std::make_shared<LanguageModel>(config);
///   const auto text = generate(model, {{1, 2, 3}}, {.sampling = {.top_k = 40}, .tokens = 50});
std::vector<int64_t> generate(const std::shared_ptr<const LanguageModel>& model,
                              std::span<const int64_t> prompt, const GenerationOptions& options,
                              const OnToken& on_token = {});

}  // namespace fmmformer
