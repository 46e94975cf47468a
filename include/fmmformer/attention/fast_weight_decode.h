// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "fmmformer/attention/fast_weight_attention.h"

namespace fmmformer {

/// All that a fast-weight attention layer remembers of the tokens so far: constant in their number.
/// Sums are fp32 (fp64 for fp64 inputs).
struct FastWeightState {
  at::Tensor memory;    // [B, H, D, Dv]  W
  at::Tensor key_sums;  // [B, H, D]      z
  at::Tensor tokens;    // int64 [B]      how many real tokens were fed in
  // What the sums are sums of: a step with others would add up what does not belong together.
  FeatureMap feature_map = FeatureMap::kElu;
  bool unit_features = true;
  FastWeightNormaliser normaliser = FastWeightNormaliser::kOutput;  // what W is may depend on it

  FastWeightState to(const at::Device& device) const;
  FastWeightState clone() const;

  /// One safetensors file, written whole or not at all. Both throw c10::ValueError: `save` when the
  /// folder does not exist, `load` for a file that is missing, cut short, damaged, of another
  /// version or no FastWeightState. `save` throws c10::Error when the disk will not have it.
  void save(const std::string& path) const;
  static FastWeightState load(const std::string& path);
};

/// Runs a prompt through fast_weight_attention and returns its output and the state after it;
/// without gradients. Masked tokens leave no trace, so that prompts of different lengths, padded
/// anywhere, go on as each would alone.
std::pair<at::Tensor, FastWeightState> fast_weight_attention_prefill(
    const FastWeightInputs& inputs, const FastWeightOptions& options);

/// One more token: q, k [B, H, D], v [B, H, Dv], beta [B, H], token_mask [B]; returns [B, H, Dv]
/// and advances the state in place. Constant time and memory. Agrees with fast_weight_attention
/// over the whole sequence. The options are those that the state was made with; other feature maps
/// or another normaliser are an error.
at::Tensor fast_weight_attention_step(const FastWeightInputs& token, FastWeightState& state,
                                      const FastWeightOptions& options);

}  // namespace fmmformer
