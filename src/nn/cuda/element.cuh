// SPDX-License-Identifier: Apache-2.0
// Elements of memory to fp32 and back, one at a time or in groups of eight.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "nn/cuda/element.h"

namespace fmmformer::cuda {

// Elements a thread takes at a time: two blocks of random words, 16 bytes of a half type.
constexpr int kGroup = 8;

template <typename T>
struct alignas(16) Pack {
  T value[kGroup];
};

__device__ inline float as_float(float x) { return x; }
__device__ inline float as_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float as_float(__half x) { return __half2float(x); }

template <typename T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 from_float(float x) {
  return __float2bfloat16(x);
}
template <>
__device__ inline __half from_float(float x) {
  return __float2half(x);
}

/// To an array whose type is known only when the kernel runs.
__device__ inline void store_element(void* to, Element element, int64_t index, float x) {
  if (element == Element::kBFloat16) {
    static_cast<__nv_bfloat16*>(to)[index] = from_float<__nv_bfloat16>(x);
  } else if (element == Element::kHalf) {
    static_cast<__half*>(to)[index] = from_float<__half>(x);
  } else {
    static_cast<float*>(to)[index] = x;
  }
}

/// Eight columns of a row, from `column` on; zeros beyond `width`. kWhole: the width is a multiple
/// of eight and rows are aligned, so that a group is wholly inside or wholly outside.
template <typename T, bool kWhole>
__device__ inline Pack<T> load_columns(const T* row, int64_t column, int64_t width) {
  Pack<T> pack;
  if constexpr (kWhole) {
    if (column < width) return *reinterpret_cast<const Pack<T>*>(row + column);
#pragma unroll
    for (int e = 0; e < kGroup; ++e) pack.value[e] = from_float<T>(0);
  } else {
#pragma unroll
    for (int e = 0; e < kGroup; ++e) {
      pack.value[e] = column + e < width ? row[column + e] : from_float<T>(0);
    }
  }
  return pack;
}

template <typename T, bool kWhole>
__device__ inline void store_columns(T* row, int64_t column, int64_t width, const Pack<T>& pack) {
  if constexpr (kWhole) {
    if (column < width) *reinterpret_cast<Pack<T>*>(row + column) = pack;
  } else {
#pragma unroll
    for (int e = 0; e < kGroup; ++e) {
      if (column + e < width) row[column + e] = pack.value[e];
    }
  }
}

/// work(a value of the element's C++ type)
template <typename Work>
auto with_element(Element element, const Work& work) {
  if (element == Element::kBFloat16) return work(__nv_bfloat16{});
  if (element == Element::kHalf) return work(__half{});
  return work(float{});
}

}  // namespace fmmformer::cuda
