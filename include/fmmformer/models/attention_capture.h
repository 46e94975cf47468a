// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "fmmformer/models/model.h"
#include "fmmformer/nn/pass.h"

namespace fmmformer {

/// What every attention layer got and gave in one inference pass over a small input.
std::vector<AttentionRecord> capture_attention(const Model& model, const ModelInputs& inputs);

/// The matrices of one head for one batch entry, dense and in double, for pictures: [N, N], row i
/// what query i takes of each key. Rows and columns of masked tokens are 0.
struct AttentionMaps {
  at::Tensor near;         // softmax in the band (or, for softmax attention, everywhere)
  at::Tensor far;          // [r, N, N], far_scale included
  at::Tensor near_weight;  // [Dv]     what their contributions to a channel are multiplied by
  at::Tensor far_weight;   // [r, Dv]
  at::Tensor
      blended;  // near_weight near + sum_l far_weight_l far_l, weights averaged over channels

  /// The head's attention output for values v [N, Dv]; equals the layer's.
  at::Tensor times(const at::Tensor& v) const;
};
AttentionMaps attention_maps(const AttentionRecord& record, int64_t batch_index, int64_t head);

}  // namespace fmmformer
