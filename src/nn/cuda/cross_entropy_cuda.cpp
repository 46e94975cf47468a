// SPDX-License-Identifier: Apache-2.0
#include "nn/cuda/cross_entropy_cuda.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "nn/cuda/cross_entropy_kernel.h"
#include "nn/cuda/partial_sums.h"
#include "nn/cuda/tensors.h"

namespace fmmformer::cuda {

using at::Tensor;

namespace {

LogitRows rows_of(const Logits& logits, const Tensor& sums) {
  return {.element = element_of(logits.values.scalar_type()),
          .rows = logits.values.size(0),
          .classes = logits.classes,
          .stride = logits.values.size(1),
          .logits = logits.values.mutable_data_ptr(),
          .targets = logits.targets.const_data_ptr<int64_t>(),
          .sums = sums.mutable_data_ptr<float>()};
}

}  // namespace

bool has_cross_entropy(const Tensor& hidden, const Tensor& weight, const Tensor& bias) {
  const auto type = hidden.scalar_type();
  return hidden.is_cuda() && (type == at::kBFloat16 || type == at::kHalf) &&
         weight.scalar_type() == type && bias.scalar_type() == type &&
         weight.device() == hidden.device() && bias.device() == hidden.device();
}

void cross_entropy_losses(const Logits& logits, const Tensor& losses, const Tensor& sums) {
  const c10::cuda::CUDAGuard device(logits.values.device());
  C10_CUDA_CHECK(cross_entropy_losses(rows_of(logits, sums), losses.mutable_data_ptr<float>(),
                                      c10::cuda::getCurrentCUDAStream()));
}

int64_t cross_entropy_parts(int64_t rows) {
  return (rows + kCrossEntropyRows - 1) / kCrossEntropyRows;
}

void cross_entropy_gradients_(const Logits& logits, const Tensor& sums, const Tensor& scale,
                              const Tensor& partials) {
  const c10::cuda::CUDAGuard device(logits.values.device());
  C10_CUDA_CHECK(cross_entropy_gradients(rows_of(logits, sums), scale.const_data_ptr<float>(),
                                         partials.mutable_data_ptr<float>(),
                                         c10::cuda::getCurrentCUDAStream()));
}

Tensor summed_parts(const Tensor& partials, at::ScalarType type) {
  const c10::cuda::CUDAGuard device(partials.device());
  const Tensor sum = at::empty({partials.size(1)}, partials.options().dtype(type));
  C10_CUDA_CHECK(add_partials({.partials = partials.const_data_ptr<float>(),
                               .parts = partials.size(0),
                               .width = partials.size(1),
                               .element = element_of(type),
                               .out = {sum.mutable_data_ptr()}},
                              c10::cuda::getCurrentCUDAStream()));
  return sum;
}

}  // namespace fmmformer::cuda
