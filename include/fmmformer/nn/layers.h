// SPDX-License-Identifier: Apache-2.0
// The ordinary layers. Unlike torch's they are made without values: nn/initialise fills them from
// a seed, and torch's global generator is never touched.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>

#include "fmmformer/nn/dropout.h"
#include "fmmformer/nn/pass.h"

namespace fmmformer {

/// x [..., in] -> x weight^T + bias [..., out]
class Linear : public torch::nn::Module {
 public:
  Linear(int64_t in, int64_t out, bool with_bias = true);
  at::Tensor forward(const at::Tensor& x) const;
  /// Without the bias, for a caller that adds it in passing: x [rows, in] -> [rows, out].
  at::Tensor product(const at::Tensor& x) const;

  at::Tensor weight;  // [out, in]
  at::Tensor bias;    // [out], or undefined
};

/// One tensor for two places that use it: the same memory, but the gradient of each comes back on
/// its own, so that whoever made it adds them in passing. Not to be changed in place.
struct TwoUses {
  at::Tensor first, second;
};

/// A norm and what it was made of, for a sum that goes on beside it: the same memory as the input,
/// whose gradients of both uses are added in passing. Not to be changed in place.
struct NormAndInput {
  at::Tensor norm, input;
};

/// Normalises the last dimension.
class LayerNorm : public torch::nn::Module {
 public:
  explicit LayerNorm(int64_t dim);
  at::Tensor forward(const at::Tensor& x) const;
  TwoUses forward_twice(const at::Tensor& x) const;
  NormAndInput forward_beside(const at::Tensor& x) const;

  at::Tensor weight, bias;  // [dim]
};

/// What happens to the rows of a table on their way into a model.
struct EmbeddingUse {
  double scale = 1;
  at::Tensor positions;  // [N, dim], added to the rows of every batch entry; undefined: nothing
  DropoutSite site;
};

/// A row of a table for every index. An index that the table does not have is an error; on a GPU it
/// ends the process's work there, as torch's own check does.
class Embedding : public torch::nn::Module {
 public:
  Embedding(int64_t rows, int64_t dim);
  at::Tensor forward(const at::Tensor& indices) const;
  /// dropout(scale * rows + positions), indices [B, N]: on a GPU in one sweep, with the bits of its
  /// parts one after another.
  at::Tensor forward(const at::Tensor& indices, const EmbeddingUse& use, const Pass& pass) const;

  at::Tensor weight;  // [rows, dim]
};

}  // namespace fmmformer
