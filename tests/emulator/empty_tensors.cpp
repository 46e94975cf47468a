// SPDX-License-Identifier: Apache-2.0
// In place of attention/fmm/cuda/empty_tensors.cpp: the CPU's memory, at multiples of 512 bytes as
// a GPU's allocator has it, and full of what is no number. Gradients are contiguous, whatever the
// strides of what they are of.
#include "attention/fmm/cuda/empty_tensors.h"

#include <ATen/ops/empty.h>

#include <cstring>

namespace fmmformer::cuda {

Wanted gradient_of(const at::Tensor& input) {
  return {at::DimVector(input.sizes()), input.scalar_type(), {}};
}

at::Tensor empty_tensor(at::IntArrayRef sizes, at::ScalarType type) {
  constexpr int64_t kAligned = 512;
  const auto size = static_cast<int64_t>(c10::elementSize(type));
  const int64_t count = c10::multiply_integers(sizes), more = kAligned / size;
  at::Tensor memory = at::empty({count + more}, type);
  std::memset(memory.data_ptr(), 0xff, static_cast<size_t>((count + more) * size));
  const auto address = reinterpret_cast<uintptr_t>(memory.data_ptr());
  const auto first = static_cast<int64_t>((kAligned - address % kAligned) % kAligned) / size;
  return memory.slice(0, first, first + count).view(sizes);
}

void empty_tensors(std::span<const Wanted> wanted, std::span<at::Tensor> tensors, int64_t) {
  for (size_t i = 0; i < wanted.size(); ++i)
    tensors[i] = empty_tensor(wanted[i].sizes, wanted[i].type);
}

}  // namespace fmmformer::cuda
