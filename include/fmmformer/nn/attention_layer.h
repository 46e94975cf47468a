// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "fmmformer/nn/blend.h"
#include "fmmformer/nn/config.h"
#include "fmmformer/nn/layers.h"
#include "fmmformer/nn/pass.h"

namespace fmmformer {

struct AttentionShape {
  int64_t dim = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
};

/// Self-attention: projections, the operator (or softmax) and the output projection.
/// x [B, N, dim] -> [B, N, dim]; token_mask bool [B, N], true = a real token.
///
/// With fast weights the first far field is fast_weight_attention's, gated by a projection of its
/// own without bias, beta = sigmoid(gate(x)) [B, N, H]; near field and the other far fields are
/// fmm_attention's, and the blend's first kernel weight multiplies the former:
///   out = near S + far (kernel_1 F + sum_{l > 1} kernel_l L_l)
///
/// Softmax is torch's own, without dropout everywhere and with it in half precision on a GPU, where
/// torch's generator draws the masks: whoever trains seeds that each step. With dropout elsewhere
/// it is the operator's near field with a window as wide as the sequence, and masks that follow
/// from the pass's seed.
class AttentionLayer : public torch::nn::Module {
 public:
  /// `layer` counts the attention layers of a model: their near-field dropout differs by it.
  AttentionLayer(const AttentionConfig& config, const AttentionShape& shape, int64_t layer);

  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& token_mask,
                     const Pass& pass) const;

  /// What goes into the output projection: [B * N, heads * head_dim].
  at::Tensor attended(const at::Tensor& x, const std::optional<at::Tensor>& token_mask,
                      const Pass& pass) const;
  const Linear& output() const { return *output_; }

 private:
  AttentionInputs project(const at::Tensor& x) const;
  at::Tensor attend(const AttentionInputs& inputs, const BlendWeights& weights,
                    const FmmOptions& options, const Pass& pass) const;
  at::Tensor attend_with_fast_weights(const AttentionInputs& inputs, const FastWeightField& fast,
                                      const BlendWeights& weights, const FmmOptions& options,
                                      const Pass& pass) const;
  /// The same for tokens that go on with a text; softmax keeps its keys as a window does.
  at::Tensor go_on(const AttentionInputs& inputs, const std::optional<FastWeightField>& fast,
                   const BlendWeights& weights, DecodingMemory& memory) const;

  AttentionConfig config_;
  AttentionShape shape_;
  int64_t layer_;
  std::shared_ptr<Linear> query_, key_, value_;  // Projections::kSeparate
  std::shared_ptr<Linear> fused_;                // Projections::kFused
  std::shared_ptr<Linear> gate_;                 // dim -> heads, of fast weights
  std::shared_ptr<Linear> output_;
  std::shared_ptr<Blend> blend_;  // none for softmax
};

}  // namespace fmmformer
