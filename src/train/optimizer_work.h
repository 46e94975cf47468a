// SPDX-License-Identifier: Apache-2.0
// The ways to compute what an Optimizer does; all take what has a gradient, detached.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "train/optimizer_math.h"

namespace fmmformer::train {

/// One parameter of a step. `weight` is what is advanced: the parameter itself, or its fp32 master.
struct OptimizerWork {
  at::Tensor parameter;
  at::Tensor gradient;  // contiguous
  at::Tensor weight;
  at::Tensor first_moment;
  at::Tensor second_moment;
};

/// One pass over all tensors, split among threads in blocks of fixed length.
void step_fused(const std::vector<OptimizerWork>& work, const UpdateFactors<double>& factors,
                double clip_tensor);
at::Tensor global_clip_fused(const std::vector<at::Tensor>& gradients, double max_norm);

/// One launch (three with clip_tensor) for all tensors of a type, on the current stream, without
/// waiting: `factors` is read from device memory when the kernels run. In a build without CUDA
/// has_step_cuda() is false and step_cuda must not be called.
bool has_step_cuda();
void step_cuda(const std::vector<OptimizerWork>& work, const at::Tensor& factors,
               double clip_tensor);

/// Torch's operators over lists of tensors: any device. The clip does not wait for it.
void step_composed(const std::vector<OptimizerWork>& work, const UpdateFactors<double>& factors,
                   double clip_tensor);
at::Tensor global_clip_composed(const std::vector<at::Tensor>& gradients, double max_norm);

}  // namespace fmmformer::train
