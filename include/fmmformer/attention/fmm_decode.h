// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "fmmformer/attention/fmm_attention.h"

namespace fmmformer {

/// All that a causal FMM attention layer remembers of the tokens so far: constant in their number.
struct FmmState {
  at::Tensor keys;      // [B, left, H, D]   the last `left` keys: a ring, slot = position % left
  at::Tensor values;    // [B, left, H, Dv]
  at::Tensor live;      // bool [B, left]    whether a slot holds a real token
  at::Tensor far_sums;  // [B, H, r, D, Dv]  sum_j f_l(k_j) v_j^T, fp32 (fp64 for fp64 inputs)
  at::Tensor far_key_sums;  // [B, H, r, D]      sum_j f_l(k_j)
  at::Tensor position;      // int64 [1]         how many tokens were fed in
  // What the sums are sums of: a step with others would add up what does not belong together.
  std::vector<FeatureMap> feature_maps = {};
  bool unit_features = false;

  FmmState to(const at::Device& device) const;
  FmmState clone() const;

  /// One safetensors file, written whole or not at all. Both throw c10::ValueError: `save` when the
  /// folder does not exist, `load` for a file that is missing, cut short, damaged, of another
  /// version or no FmmState. `save` throws c10::Error when the disk will not have it.
  void save(const std::string& path) const;
  static FmmState load(const std::string& path);
};

/// Runs a prompt through fmm_attention and returns its output and the state after it. Needs
/// options.causal; without gradients. With a token mask each batch entry's state ends at its last
/// real token, so that prompts of different lengths, padded on the right or on the left, go on as
/// each would alone.
std::pair<at::Tensor, FmmState> fmm_attention_prefill(const AttentionInputs& inputs,
                                                      const BlendWeights& weights,
                                                      const FmmOptions& options);

/// One more token: q, k [B, H, D], v [B, H, Dv], token_mask [B]; returns [B, H, Dv] and advances
/// the state in place. Constant time and memory. Agrees with fmm_attention over the whole sequence.
/// The options are those that the state was made with; others are an error where the state shows
/// it. Normaliser kInvSqrtLength is an error: a step has no length. Dropout is not applied:
/// decoding is inference.
at::Tensor fmm_attention_step(const AttentionInputs& token, FmmState& state,
                              const BlendWeights& weights, const FmmOptions& options);

}  // namespace fmmformer
