// SPDX-License-Identifier: Apache-2.0
#include "nn/cuda/dropout_cuda.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "nn/cuda/dropout_kernel.h"
#include "nn/cuda/tensors.h"

namespace fmmformer::cuda {
namespace {

using at::Tensor;

struct SweepTensors {
  const Tensor& x;
  Tensor bias = {}, other = {};
  const Tensor& out;
};

using Sweep = cudaError_t (*)(const DropoutStream&, const DropoutSweep&, cudaStream_t);

/// All of them contiguous.
void run(Sweep sweep, const DropoutStream& stream, const SweepTensors& tensors) {
  const c10::cuda::CUDAGuard device(tensors.x.device());
  const DropoutSweep arguments{.element = element_of(tensors.x.scalar_type()),
                               .elements = tensors.x.numel(),
                               .x = tensors.x.const_data_ptr(),
                               .bias = data_or_null(tensors.bias),
                               .columns = tensors.bias.defined() ? tensors.bias.numel() : 1,
                               .other = data_or_null(tensors.other),
                               .out = tensors.out.mutable_data_ptr()};
  C10_CUDA_CHECK(sweep(stream, arguments, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace

bool has_dropout_kernel(const Tensor& x) { return x.is_cuda() && is_element(x.scalar_type()); }

Tensor dropout_multiply(const Tensor& any, const DropoutSite& site, const Tensor& seed) {
  const Tensor x = any.contiguous();
  Tensor out = at::empty_like(x);
  run(&dropout_multiply, stream_of(site, seed), {.x = x, .out = out});
  return out;
}

Tensor dropout_add(const Tensor& residual, const Tensor& any, const Tensor& bias,
                   const DropoutSite& site, const Tensor& seed) {
  const Tensor x = any.contiguous();
  Tensor out = at::empty_like(x);
  run(&dropout_add, stream_of(site, seed),
      {.x = x, .bias = bias, .other = residual.contiguous(), .out = out});
  return out;
}

void dropout_relu_(const Tensor& x, const Tensor& bias, const DropoutSite& site,
                   const Tensor& seed) {
  run(&dropout_relu, stream_of(site, seed), {.x = x, .bias = bias, .out = x});
}

Tensor dropout_gelu(const Tensor& any, const Tensor& bias, const DropoutSite& site,
                    const Tensor& seed) {
  const Tensor x = any.contiguous();
  Tensor out = at::empty_like(x);
  run(&dropout_gelu, stream_of(site, seed), {.x = x, .bias = bias, .out = out});
  return out;
}

Tensor dropout_relu_gradient(const Tensor& out, const Tensor& any, double probability) {
  const Tensor grad = any.contiguous();
  Tensor result = at::empty_like(grad);
  run(&dropout_relu_gradient, {.probability = probability},
      {.x = grad, .other = out.contiguous(), .out = result});
  return result;
}

}  // namespace fmmformer::cuda
