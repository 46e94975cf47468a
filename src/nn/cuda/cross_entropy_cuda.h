// SPDX-License-Identifier: Apache-2.0
// Tensors to the kernels of cross_entropy_kernel.h, on the current stream and without waiting.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fmmformer::cuda {

/// Whether the functions below take logits that come from such a product: bf16 or fp16 on a GPU,
/// all of one type.
bool has_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias);

/// Logits [T, stride] of which `classes` columns count, and targets int64 [T].
struct Logits {
  at::Tensor values;  // contiguous, stride a multiple of eight
  int64_t classes = 0;
  at::Tensor targets;
};

/// Writes into fp32 [T], both contiguous: losses, and sums = log sum exp of each row.
void cross_entropy_losses(const Logits& logits, const at::Tensor& losses, const at::Tensor& sums);

/// How many rows of partial sums T rows of logits leave.
int64_t cross_entropy_parts(int64_t rows);

/// Turns the logits into their gradient for the upstream gradient scale, fp32 [T]. Leaves sums of
/// its columns in partials, fp32 [cross_entropy_parts(T), stride].
void cross_entropy_gradients_(const Logits& logits, const at::Tensor& sums, const at::Tensor& scale,
                              const at::Tensor& partials);

/// The columns' sums of partials [parts, columns], in a fixed order.
at::Tensor summed_parts(const at::Tensor& partials, at::ScalarType type);

}  // namespace fmmformer::cuda
