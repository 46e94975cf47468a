// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "fmmformer/attention/fast_weight_options.h"

namespace fmmformer {

/// The tensors of a fast-weight attention call.
struct FastWeightInputs {
  at::Tensor q;                          // [batch, length, heads, head_dim]
  at::Tensor k;                          // like q
  at::Tensor v;                          // [batch, length, heads, value_dim]
  at::Tensor beta;                       // [batch, length, heads], any floating type, any strides
  std::optional<at::Tensor> token_mask;  // bool [batch, length], true = a real token; none: all are
};

/// Fast-weight attention: a far field that corrects itself (the delta rule). Where linear attention
/// adds every value to its state, this one first reads what the state already says about the key,
/// and writes the part that is missing, gated by beta. Causal. For one batch entry and head, W_0 =
/// 0 [D, Dv], z_0 = 0 [D], x = f(k), y = f(q), t over the real tokens:
///
///   p_t   = W_{t-1}^T x_t                                        what the key reads
///   u_t   = beta_t (v_t - p_t)                                   what it writes
///   W_t   = W_{t-1} + x_t u_t^T,   z_t = z_{t-1} + x_t
///   out_t = far_scale * W_t^T y_t / norm_t
///
/// normaliser none:           norm_t = 1
/// normaliser output:         norm_t = <y_t, z_t> + eps
/// normaliser output_and_key: the same, and with s_t = <x_t, z_{t-1}> (1 for the first token)
///                            u_t = beta_t s_t / (s_t + eps) (v_t - p_t / (s_t + eps))
///
/// For signed maps (tanh, identity) s + eps is replaced by s where |s| > eps, else copysign(eps,
/// s), without gradient there, as in fmm_attention.
///
/// q, k, v: any strides, so [B, N, H, D] and (transposed) [B, H, N, D] both work without a copy;
/// only the last dimension must be contiguous. D and Dv from 1 to 256, any N >= 1; heads of stride
/// 0 are fine. Types: fp64, fp32, bf16, fp16; states and sums are in fp32 or better. beta is meant
/// to lie in (0, 1) and is not checked. Returns [B, N, H, Dv], contiguous, in q's type.
///
/// Keep features small: a state stays bounded while beta |f(k)|^2 < 2, which unit features grant
/// and raw ones do not.
///
/// A masked token is dead: its key reads and writes nothing, its output is exactly 0, and it
/// receives exactly zero gradients, whatever it holds (NaN and inf included).
///
/// Differentiable once in q, k, v and beta. The same bits on every run and for every number of
/// threads. Time O(N D Dv) per head, memory O(N). Throws c10::ValueError, naming the value, what is
/// allowed and the way out, when the inputs do not fit.
at::Tensor fast_weight_attention(const FastWeightInputs& inputs, const FastWeightOptions& options);

}  // namespace fmmformer
