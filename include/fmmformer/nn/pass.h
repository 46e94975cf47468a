// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "fmmformer/attention/fast_weight_options.h"
#include "fmmformer/attention/fmm_attention.h"

namespace fmmformer {

struct DecodingMemory;

/// The far field of fast_weight_attention, beside inputs that it shares with the others.
struct FastWeightField {
  at::Tensor gate;  // beta [batch, length, heads]
  FastWeightOptions options;
};

/// What one attention layer computed, for whoever wants to look (models/attention_capture.h).
struct AttentionRecord {
  int64_t layer = 0;
  AttentionInputs inputs;
  BlendWeights weights;
  FmmOptions options;  // of softmax attention: a window as wide as the sequence
  std::optional<FastWeightField>
      fast;        // if there: far field 0 of the weights, before options' maps
  at::Tensor out;  // [batch, length, heads, value_dim], before the output projection
};

/// How a forward pass is meant; goes to every module beside the tensors. The default is inference.
struct Pass {
  bool training = false;    // dropout happens
  at::Tensor dropout_seed;  // int64 [1] on the model's device; all of the pass's dropout follows
                            // from it, so a new one is due each step (dropout_seed below)
  std::function<void(const AttentionRecord&)> on_attention;  // empty: nobody looks
  // The tokens go on with the text that this remembers, and it grows by them: inference, token by
  // token (nn/decoding_memory.h). None: the tokens are all there is.
  DecodingMemory* memory = nullptr;
};

/// The seed of one training step: a function of the run's seed and the step, nothing else.
int64_t dropout_seed_value(uint64_t run_seed, int64_t step);
/// The same as the tensor that a Pass wants.
at::Tensor dropout_seed(uint64_t run_seed, int64_t step, const at::Device& device);

}  // namespace fmmformer
