// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/models/decoding_session.h"

#include <ATen/ATen.h>

#include <utility>

namespace fmmformer {
namespace {

void check_model(const ModelConfig& config) {
  const AttentionConfig& attention = config.attention;
  TORCH_CHECK_VALUE(attention.causal,
                    "decoding: the model's attention is not causal (model.attention.causal = "
                    "false), so it cannot go on with a text token by token");
  TORCH_CHECK_VALUE(attention.options(config.max_length).feature_maps.empty() ||
                        attention.normaliser != Normaliser::kInvSqrtLength,
                    "decoding: the model divides its far field by the length of the whole text "
                    "(model.attention.normaliser = inv_sqrt_length), which is not known while it "
                    "grows; use a model with row_sum or none");
}

}  // namespace

DecodingSession::DecodingSession(std::shared_ptr<const LanguageModel> model)
    : model_(std::move(model)),
      device_(model_->parameters().front().device()),
      window_(model_->config().max_length),
      windowed_(model_->config().positions != Positions::kNone ||
                model_->config().attention.kind == AttentionKind::kSoftmax),
      memory_{.longest = window_},
      cluster_bounds_(model_->cluster_bounds()) {
  check_model(model_->config());
}

void DecodingSession::add_to_context(int64_t token) {
  if (std::ssize(context_) == window_) {
    const int64_t kept = windowed_ ? window_ / 2 : window_ - 1;
    context_.erase(context_.begin(), context_.end() - kept);
    if (windowed_) memory_ = {.longest = window_};
  }
  context_.push_back(token);
}

TokenScores DecodingSession::read_pass(std::span<const int64_t> tokens) {
  const at::Tensor row = at::tensor(at::IntArrayRef(tokens.data(), tokens.size()));
  return model_->next_token(row.unsqueeze(0).to(device_), memory_, cluster_bounds_);
}

TokenScores DecodingSession::read(std::span<const int64_t> tokens) {
  if (memory_.tokens == 0) return read_pass(tokens);
  for (; tokens.size() > 1; tokens = tokens.subspan(1)) read_pass(tokens.first(1));
  return read_pass(tokens);
}

TokenScores DecodingSession::feed(std::span<const int64_t> tokens) {
  TORCH_CHECK_VALUE(!tokens.empty(), "decoding: no tokens were given; give at least one");
  const int64_t vocabulary = model_->config().vocabulary;
  for (const int64_t token : tokens) {
    TORCH_CHECK_VALUE(token >= 0 && token < vocabulary, "decoding: token ", token,
                      "; the model knows 0..", vocabulary - 1);
  }
  tokens_ += std::ssize(tokens);
  for (const int64_t token : tokens) add_to_context(token);
  if (!windowed_) return read(tokens);
  return read(std::span(context_).subspan(static_cast<size_t>(memory_.tokens)));
}

}  // namespace fmmformer
