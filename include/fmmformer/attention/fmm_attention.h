// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "fmmformer/attention/options.h"

namespace fmmformer {

/// The tensors of an attention call.
struct AttentionInputs {
  at::Tensor q;                          // [batch, length, heads, head_dim]
  at::Tensor k;                          // like q
  at::Tensor v;                          // [batch, length, heads, value_dim]
  std::optional<at::Tensor> token_mask;  // bool [batch, length], true = a real token; none: all are
  std::optional<at::Tensor> dropout_seed;  // int64 [1], on q's device: read when the kernel runs
};

/// What near and far field are multiplied by before they are added. May be fp32 beside bf16 or fp16
/// inputs.
struct BlendWeights {
  std::optional<at::Tensor> near_weight;  // broadcasts to [heads, value_dim]; none: 1
  std::optional<at::Tensor> far_weight;   // broadcasts to [feature maps, heads, value_dim]; none: 1
};

/// FMM attention: softmax inside a band plus r kernelised far fields, blended. For one batch entry
/// and head:
///
///   near_i  = sum_{j in band(i)} softmax_j(near_scale <q_i, k_j>) v_j
///   far_l,i = far_scale * sum_{j in reach(i)} <f_l(q_i), f_l(k_j)> v_j / norm_l,i
///   out_i   = near_weight * near_i + sum_l far_weight[l] * far_l,i            (products per
///   channel of v)
///
///   band(i)  = { j : -left <= j - i <= right, j a real token, j <= i if causal }
///   reach(i) = { j : j a real token, j <= i if causal }
///
/// q, k, v: any strides, so [B, N, H, D] and (transposed) [B, H, N, D] both work without a copy;
/// only the last dimension must be contiguous. D and Dv from 1 to 256, any N >= 1; heads of stride
/// 0 are fine. Types: fp64 (CPU), fp32, bf16, fp16; sums and softmax are in fp32 or better. Returns
/// [B, N, H, Dv], contiguous, in q's type.
///
/// A masked token is dead: as a key it gives nothing, as a query its output is exactly 0, and it
/// receives exactly zero gradients, whatever it holds (NaN and inf included). A live query always
/// sees itself in its band.
///
/// Differentiable once in q, k, v and both weights. The same bits on every run and for every number
/// of threads. Time O(N (left + right + r D) D) per head, memory O(N): nothing of size N^2 exists.
/// Throws c10::ValueError, naming the value, what is allowed and the way out, when the inputs do
/// not fit.
at::Tensor fmm_attention(const AttentionInputs& inputs, const BlendWeights& weights,
                         const FmmOptions& options);

}  // namespace fmmformer
