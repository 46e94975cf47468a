// SPDX-License-Identifier: Apache-2.0
#include "attention/fmm/cuda/empty_tensors.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <c10/core/Storage.h>
#include <c10/cuda/CUDACachingAllocator.h>

namespace fmmformer::cuda {
namespace {

constexpr c10::DispatchKeySet kGpu(c10::DispatchKey::CUDA);

/// Of a tensor that has no gaps, whatever the order of its dimensions.
int64_t bytes_of(const Wanted& one) {
  constexpr int64_t kAligned = 512;  // as the allocator's own
  const int64_t bytes =
      c10::multiply_integers(one.sizes) * static_cast<int64_t>(c10::elementSize(one.type));
  return (bytes + kAligned - 1) / kAligned * kAligned;
}

at::Tensor in_storage(const c10::Storage& storage, int64_t first_byte, const Wanted& one) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), kGpu,
                                                               c10::scalarTypeToTypeMeta(one.type));
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (one.strides.empty()) {
    impl->set_sizes_contiguous(one.sizes);
  } else {
    impl->set_sizes_and_strides(at::IntArrayRef(one.sizes), at::IntArrayRef(one.strides));
  }
  impl->set_storage_offset(first_byte / static_cast<int64_t>(c10::elementSize(one.type)));
  return tensor;
}

}  // namespace

Wanted gradient_of(const at::Tensor& input) {
  at::DimVector strides(input.is_non_overlapping_and_dense()
                            ? input.strides()
                            : at::infer_dense_strides(input.sizes(), input.strides()));
  if (strides.back() != 1) strides.clear();
  return {at::DimVector(input.sizes()), input.scalar_type(), strides};
}

at::Tensor empty_tensor(at::IntArrayRef sizes, at::ScalarType type) {
  return at::Tensor(at::detail::empty_generic(sizes, c10::cuda::CUDACachingAllocator::get(), kGpu,
                                              type, std::nullopt));
}

void empty_tensors(std::span<const Wanted> wanted, std::span<at::Tensor> tensors,
                   int64_t most_together) {
  c10::Allocator* allocator = c10::cuda::CUDACachingAllocator::get();
  const auto allocated = [&](int64_t bytes) {
    return c10::Storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes),
                        allocator->allocate(static_cast<size_t>(bytes)), allocator,
                        /*resizable=*/true);
  };
  int64_t all = 0, before = 0;
  for (const Wanted& one : wanted) all += bytes_of(one);
  const bool shares = most_together > 0 && all <= most_together;
  const c10::Storage together = shares ? allocated(all) : c10::Storage();
  for (size_t i = 0; i < wanted.size(); ++i) {
    const int64_t bytes = bytes_of(wanted[i]);
    tensors[i] = shares ? in_storage(together, before, wanted[i])
                        : in_storage(allocated(bytes), 0, wanted[i]);
    before += bytes;
  }
}

}  // namespace fmmformer::cuda
