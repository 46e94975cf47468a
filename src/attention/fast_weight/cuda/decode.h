// SPDX-License-Identifier: Apache-2.0
// One decoding step on the GPU. No torch here.
#pragma once

#include "attention/fast_weight/cuda/sweep.h"

namespace fmmformer::cuda::fast_weight {

/// One token of every (batch entry, head), and the state it moves on. All contiguous.
struct StepArgs {
  Element element = Element::kFloat32;
  int64_t batch = 0;
  int heads = 0, head_dim = 0, value_dim = 0;
  const void *q = nullptr, *k = nullptr, *v = nullptr;  // [batch, heads, dim]
  Weight beta;                                          // by head and batch entry
  void* out = nullptr;
  const bool* token_mask = nullptr;  // [batch], or none
  FeatureMap feature_map = FeatureMap::kElu;
  bool unit_features = false;
  FastWeightNormaliser normaliser = FastWeightNormaliser::kOutput;
  float eps = 0, far_scale = 1;
  float *memory = nullptr, *key_sums = nullptr;  // [batch, heads, D, Dv] and [batch, heads, D]
  int64_t* tokens = nullptr;                     // [batch]
};

/// Two launches: heads, which read how many tokens there were, and then one more of them. Steps of
/// one state must not overlap.
cudaError_t decode_step(const StepArgs& args, cudaStream_t stream);

}  // namespace fmmformer::cuda::fast_weight
