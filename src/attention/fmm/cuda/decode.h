// SPDX-License-Identifier: Apache-2.0
// One decoding step on the GPU. No torch here.
#pragma once

#include <cuda_runtime_api.h>

#include "attention/fmm/cuda/sweep.h"

namespace fmmformer::cuda {

/// One token of every (batch entry, head), and the state it moves on. All contiguous.
struct StepArgs {
  Element element = Element::kFloat32;
  int64_t batch = 0, heads = 0;
  int head_dim = 0, value_dim = 0;
  const void *q = nullptr, *k = nullptr, *v = nullptr;  // [batch, heads, dim]
  void* out = nullptr;
  const bool* token_mask = nullptr;  // [batch], or none

  bool has_near = false;
  int64_t left = 0;
  float near_scale = 1;
  int maps = 0;
  FeatureMap feature_maps[kMaxFeatureMaps] = {};
  bool unit_features = false;
  Normaliser normaliser = Normaliser::kRowSum;
  float eps = 0, far_scale = 1;
  Weight near_weight, far_weight;

  void *keys = nullptr, *values = nullptr;             // [batch, left, heads, dim], a ring
  bool* live = nullptr;                                // [batch, left]
  float *far_sums = nullptr, *far_key_sums = nullptr;  // [batch, heads, maps, D, Dv] and [.., D]
  int64_t* position = nullptr;                         // [1]
};

/// One launch. Steps of one state must not overlap.
cudaError_t decode_step(const StepArgs& args, cudaStream_t stream);

}  // namespace fmmformer::cuda
