// SPDX-License-Identifier: Apache-2.0
// New tensors on the current GPU, for little of the host's time (ADR 28): past the dispatcher,
// which takes as long as the allocation itself, and several of them in one allocation.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>

#include <array>
#include <span>

namespace fmmformer::cuda {

struct Wanted {
  at::DimVector sizes;
  at::ScalarType type = at::kFloat;
  at::DimVector strides = {};  // none: contiguous
};
/// The gradient of q, k or v: as empty_gradient_of() lays it out.
Wanted gradient_of(const at::Tensor& input);

at::Tensor empty_tensor(at::IntArrayRef sizes, at::ScalarType type);

/// Tensors that share memory live as long as the last of them does. Calls as small as this have
/// little of it, and take the GPU less time than the host.
constexpr int64_t kSmallCall = int64_t{32} << 20;  // bytes

/// Together in one allocation if that is of at most so many bytes; else each for itself.
void empty_tensors(std::span<const Wanted> wanted, std::span<at::Tensor> tensors,
                   int64_t most_together);
template <size_t kCount>
std::array<at::Tensor, kCount> empty_tensors(const Wanted (&wanted)[kCount],
                                             int64_t most_together) {
  std::array<at::Tensor, kCount> tensors;
  empty_tensors(std::span<const Wanted>(wanted), tensors, most_together);
  return tensors;
}

}  // namespace fmmformer::cuda
