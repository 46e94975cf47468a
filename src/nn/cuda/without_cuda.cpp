// SPDX-License-Identifier: Apache-2.0
// What a build without CUDA links in place of the other files here.
#include <ATen/ATen.h>

#include "nn/cuda/column_sum_cuda.h"
#include "nn/cuda/cross_entropy_cuda.h"
#include "nn/cuda/dropout_cuda.h"
#include "nn/cuda/embedding_cuda.h"
#include "nn/cuda/layer_norm_cuda.h"
#include "nn/cuda/weighted_field_cuda.h"

namespace fmmformer::cuda {

using at::Tensor;

bool has_dropout_kernel(const Tensor&) { return false; }

Tensor dropout_multiply(const Tensor&, const DropoutSite&, const Tensor&) {
  TORCH_INTERNAL_ASSERT(false, "this build has no CUDA kernels");
}
Tensor dropout_add(const Tensor&, const Tensor&, const Tensor&, const DropoutSite&, const Tensor&) {
  TORCH_INTERNAL_ASSERT(false, "this build has no CUDA kernels");
}
void dropout_relu_(const Tensor&, const Tensor&, const DropoutSite&, const Tensor&) {
  TORCH_INTERNAL_ASSERT(false, "this build has no CUDA kernels");
}
Tensor dropout_gelu(const Tensor&, const Tensor&, const DropoutSite&, const Tensor&) {
  TORCH_INTERNAL_ASSERT(false, "this build has no CUDA kernels");
}
Tensor dropout_relu_gradient(const Tensor&, const Tensor&, double) {
  TORCH_INTERNAL_ASSERT(false, "this build has no CUDA kernels");
}

bool has_layer_norm_kernel(const Tensor&, const Tensor&, const Tensor&) { return false; }

NormResult layer_norm_forward(const Tensor&, const Tensor&, const Tensor&, double) {
  TORCH_INTERNAL_ASSERT(false, "this build has no CUDA kernels");
}
NormGradients layer_norm_backward(const NormSaved&, const NormUpstream&) {
  TORCH_INTERNAL_ASSERT(false, "this build has no CUDA kernels");
}

bool has_embedding_kernel(const Tensor&, const Tensor&, const Tensor&) { return false; }
Tensor embedded_tokens(const EmbeddedTensors&, const DropoutSite&, const Tensor&) {
  TORCH_INTERNAL_ASSERT(false, "this build has no CUDA kernels");
}
bool has_embedding_gradient(const Tensor&, int64_t) { return false; }
Tensor embedding_gradient(const Tensor&, const Tensor&, int64_t) {
  TORCH_INTERNAL_ASSERT(false, "this build has no CUDA kernels");
}

bool has_cross_entropy(const Tensor&, const Tensor&, const Tensor&) { return false; }
void cross_entropy_losses(const Logits&, const Tensor&, const Tensor&) {
  TORCH_INTERNAL_ASSERT(false, "this build has no CUDA kernels");
}
int64_t cross_entropy_parts(int64_t) {
  TORCH_INTERNAL_ASSERT(false, "this build has no CUDA kernels");
}
void cross_entropy_gradients_(const Logits&, const Tensor&, const Tensor&, const Tensor&) {
  TORCH_INTERNAL_ASSERT(false, "this build has no CUDA kernels");
}
Tensor summed_parts(const Tensor&, at::ScalarType) {
  TORCH_INTERNAL_ASSERT(false, "this build has no CUDA kernels");
}

bool has_column_sum_kernel(const Tensor&, at::ScalarType) { return false; }

Tensor column_sum(const Tensor&, at::ScalarType) {
  TORCH_INTERNAL_ASSERT(false, "this build has no CUDA kernels");
}
std::vector<Tensor> column_sums(at::TensorList, at::ScalarType) {
  TORCH_INTERNAL_ASSERT(false, "this build has no CUDA kernels");
}
Summed dropout_multiply_and_sum(const Tensor&, const DropoutSite&, const Tensor&, at::ScalarType) {
  TORCH_INTERNAL_ASSERT(false, "this build has no CUDA kernels");
}
bool fits_gelu_gradient(const Tensor&, const Tensor&) { return false; }
Summed dropout_gelu_gradient_and_sum(const Tensor&, const Tensor&, const Tensor&,
                                     const DropoutSite&, const Tensor&) {
  TORCH_INTERNAL_ASSERT(false, "this build has no CUDA kernels");
}
Summed dropout_relu_gradient_and_sum(const Tensor&, const Tensor&, double, at::ScalarType) {
  TORCH_INTERNAL_ASSERT(false, "this build has no CUDA kernels");
}

bool has_weighted_field_kernel(const Tensor&, const Tensor&, const Tensor&) { return false; }
Tensor add_weighted_field(const Tensor&, const Tensor&, const Tensor&) {
  TORCH_INTERNAL_ASSERT(false, "this build has no CUDA kernels");
}
WeightedFieldGradients weighted_field_gradients(const Tensor&, const Tensor&, const Tensor&) {
  TORCH_INTERNAL_ASSERT(false, "this build has no CUDA kernels");
}

}  // namespace fmmformer::cuda
