// SPDX-License-Identifier: Apache-2.0
// Near and far field as a user would write them in torch; peers.cpp blends them.
#pragma once

#include <span>

#include "fmmformer/attention/fmm_attention.h"

namespace fmmformer::bench {

/// q, k, v as [G, N, D] with G = batch * heads: without a copy when they lie head first.
struct Grouped {
  at::Tensor q, k, v;
  int64_t batch, heads, length;
};

Grouped group(const AttentionInputs& inputs);

/// Query blocks against their own and the neighbouring key blocks, masked, softmax: [G, N, Dv].
at::Tensor blocked_near_field(const Grouped& g, const FmmOptions& options);

/// The authors' near field: all N x N scores, most of them masked.
at::Tensor dense_near_field(const Grouped& g, const FmmOptions& options);

/// Causal linear attention in chunks, all feature maps at once: inside a chunk by the sum of their
/// weighted matrices, before it by their stacked states. weights[l] broadcasts to [heads, 1], or is
/// undefined for 1.
at::Tensor causal_far_fields(const Grouped& g, std::span<const FeatureMap> maps,
                             std::span<const at::Tensor> weights, const FmmOptions& options);

/// Two-sided linear attention with one feature map: one state for all queries.
at::Tensor two_sided_far_field(const Grouped& g, FeatureMap map, const FmmOptions& options);

}  // namespace fmmformer::bench
