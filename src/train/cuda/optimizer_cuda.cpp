// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "train/cuda/optimizer_kernel.h"
#include "train/optimizer_work.h"

namespace fmmformer::train {
namespace {

using at::Tensor;
using cuda::TensorGroup;

void run_group(ElementType type, const TensorGroup& group, const Tensor& factors,
               double clip_tensor) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  const double* scales = nullptr;
  Tensor scratch;
  if (clip_tensor > 0) {
    scratch = at::empty({group.shares() + group.tensors}, factors.options());
    double* sums = scratch.mutable_data_ptr<double>();
    double* of_tensors = sums + group.shares();
    C10_CUDA_CHECK(cuda::clip_scales(type, group, clip_tensor, sums, of_tensors, stream));
    scales = of_tensors;
  }
  C10_CUDA_CHECK(
      cuda::update_tensors(type, group, factors.const_data_ptr<double>(), scales, stream));
}

}  // namespace

bool has_step_cuda() { return true; }

void step_cuda(const std::vector<OptimizerWork>& work, const Tensor& factors, double clip_tensor) {
  TORCH_CHECK_VALUE(
      factors.is_cuda() && factors.scalar_type() == at::kDouble && factors.numel() == kFactorCount,
      "step_cuda: factors are ", factors.options(), ", ", factors.sizes(), "; wanted float64 [",
      kFactorCount, "] on the parameters' device");
  const c10::cuda::CUDAGuard device(factors.device());
  struct Type {
    at::ScalarType scalar;
    ElementType element;
  };
  for (const Type type : {Type{at::kFloat, ElementType::kFloat},
                          {at::kDouble, ElementType::kDouble},
                          {at::kBFloat16, ElementType::kBFloat16},
                          {at::kHalf, ElementType::kHalf}}) {
    TensorGroup group;
    for (const OptimizerWork& item : work) {
      if (item.parameter.scalar_type() != type.scalar) continue;
      group.add({.parameter = item.parameter.mutable_data_ptr(),
                 .gradient = item.gradient.const_data_ptr(),
                 .weight = item.weight.mutable_data_ptr(),
                 .first_moment = item.first_moment.mutable_data_ptr(),
                 .second_moment = item.second_moment.mutable_data_ptr(),
                 .elements = item.parameter.numel()});
      if (group.is_full()) run_group(type.element, std::exchange(group, {}), factors, clip_tensor);
    }
    if (group.tensors > 0) run_group(type.element, group, factors, clip_tensor);
  }
  // Writing through pointers goes past autograd, which must learn that the values changed.
  for (const OptimizerWork& item : work) item.parameter.unsafeGetTensorImpl()->bump_version();
}

}  // namespace fmmformer::train
