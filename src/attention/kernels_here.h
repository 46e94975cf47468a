// SPDX-License-Identifier: Apache-2.0
// Whether this library has kernels where a call's tensors lie.
#pragma once

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace fmmformer {

/// Throws, before the dispatcher would in words that name no way out, where q is on a GPU and the
/// library was built without CUDA. Tensors that have no memory (torch.compile's) need no kernels.
inline void check_kernels_here(const char* function, const c10::OperatorHandle& op,
                               const at::Tensor& q) {
  if (!q.is_cuda() || at::isTensorSubclassLike(q)) return;
  TORCH_CHECK_NOT_IMPLEMENTED(
      op.hasKernelForDispatchKey(c10::DispatchKey::CUDA), function, ": q is on ", q.device(),
      ", and this library was built without CUDA kernels; build it where nvcc is found, or move "
      "the tensors to the CPU");
}

}  // namespace fmmformer
