// SPDX-License-Identifier: Apache-2.0
#include "train/tensor_file.h"

#include <ATen/ATen.h>

#include <cstring>

namespace fmmformer::train {
namespace {

using at::Tensor;

constexpr std::pair<at::ScalarType, std::string_view> kTypeNames[] = {
    {at::kDouble, "F64"}, {at::kFloat, "F32"}, {at::kHalf, "F16"}, {at::kBFloat16, "BF16"},
    {at::kLong, "I64"},   {at::kInt, "I32"},   {at::kByte, "U8"},  {at::kBool, "BOOL"}};

std::string type_name(const std::string& name, at::ScalarType type) {
  for (const auto& [known, text] : kTypeNames) {
    if (known == type) return std::string(text);
  }
  TORCH_CHECK_VALUE(false, "cannot store tensor '", name, "' of type ", type,
                    "; allowed: float64, float32, float16, bfloat16, int64, int32, uint8, bool");
}

at::ScalarType scalar_type(const std::string& name, const std::string& dtype) {
  for (const auto& [type, text] : kTypeNames) {
    if (text == dtype) return type;
  }
  TORCH_CHECK_VALUE(false, "tensor '", name, "' has type ", dtype, ", which is unknown here");
}

}  // namespace

TensorViews::TensorViews(const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    const Tensor plain = tensor.detach().to(at::kCPU).contiguous();
    views_.emplace_back(
        name, SafeTensorView{.dtype = type_name(name, plain.scalar_type()),
                             .shape = plain.sizes().vec(),
                             .data = {static_cast<const std::byte*>(plain.const_data_ptr()),
                                      static_cast<size_t>(plain.nbytes())}});
    tensors_.push_back(plain);
  }
}

NamedTensors tensors_of(const SafeTensorsFile& file) {
  NamedTensors tensors;
  for (const auto& [name, stored] : file.tensors) {
    const Tensor tensor = at::empty(stored.shape, scalar_type(name, stored.dtype));
    TORCH_INTERNAL_ASSERT(tensor.nbytes() == stored.data.size());
    if (!stored.data.empty()) {
      std::memcpy(tensor.mutable_data_ptr(), stored.data.data(), stored.data.size());
    }
    tensors.emplace_back(name, tensor);
  }
  return tensors;
}

}  // namespace fmmformer::train
