// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fmmformer::cuda {

/// What the kernels of this folder read and write; they compute in fp32.
enum class Element { kFloat, kBFloat16, kHalf };

/// To 16 bytes: the widest load.
inline bool is_aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

}  // namespace fmmformer::cuda
