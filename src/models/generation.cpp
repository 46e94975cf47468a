// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/models/generation.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include "fmmformer/models/decoding_session.h"

namespace fmmformer {

std::vector<int64_t> generate(const std::shared_ptr<const LanguageModel>& model,
                              std::span<const int64_t> prompt, const GenerationOptions& options,
                              const OnToken& on_token) {
  const c10::InferenceMode no_bookkeeping;  // of gradients: it costs a fifth of a step
  DecodingSession session(model);
  std::vector<int64_t> added;
  while (std::ssize(added) < options.tokens) {
    const TokenScores scores =
        session.feed(added.empty() ? prompt : std::span<const int64_t>(&added.back(), 1));
    Random random(derive_seed(options.seed, "generation", options.sample, added.size()));
    added.push_back(sample_token(scores, options.sampling, session.context(), random));
    if (on_token && !on_token(added.back())) break;
  }
  return added;
}

}  // namespace fmmformer
