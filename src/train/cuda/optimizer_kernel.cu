// SPDX-License-Identifier: Apache-2.0
#include "train/cuda/optimizer_kernel.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "train/optimizer_math.h"

namespace fmmformer::train::cuda {
namespace {

constexpr int kThreads = 256;

/// What an element is computed in: that of its moments.
template <typename Element>
using Accumulator = std::conditional_t<std::is_same_v<Element, double>, double, float>;

__device__ double widened(double x) { return x; }
__device__ float widened(float x) { return x; }
__device__ float widened(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ float widened(__half x) { return __half2float(x); }

__device__ void round_to(__nv_bfloat16& to, float x) { to = __float2bfloat16(x); }
__device__ void round_to(__half& to, float x) { to = __float2half(x); }

struct Share {
  int tensor;
  int64_t begin;
  int64_t end;
};

/// The share of this thread block, by bisection.
__device__ Share own_share(const TensorGroup& group) {
  const int32_t share = static_cast<int32_t>(blockIdx.x);
  int low = 0, high = group.tensors;  // first_share[low] <= share < first_share[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (group.first_share[middle] <= share ? low : high) = middle;
  }
  const int64_t begin = static_cast<int64_t>(share - group.first_share[low]) * kShareElements;
  const int64_t end = begin + kShareElements;
  return {low, begin, end < group.slots[low].elements ? end : group.slots[low].elements};
}

/// The sum over a thread block, in a fixed order; for thread 0 alone.
__device__ double block_sum(double value) {
  __shared__ double values[kThreads];
  values[threadIdx.x] = value;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) values[threadIdx.x] += values[threadIdx.x + half];
  }
  return values[0];
}

template <typename Element>
__global__ void __launch_bounds__(kThreads)
    sum_squares(const __grid_constant__ TensorGroup group, double* sums) {
  const Share share = own_share(group);
  const Element* gradient = static_cast<const Element*>(group.slots[share.tensor].gradient);
  double sum = 0;
  for (int64_t i = share.begin + threadIdx.x; i < share.end; i += kThreads) {
    const double value = widened(gradient[i]);
    sum += value * value;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    scales_from_sums(const __grid_constant__ TensorGroup group, double max_norm, const double* sums,
                     double* scales) {
  const int tensor = static_cast<int>(blockIdx.x);
  double sum = 0;
  for (int32_t i = group.first_share[tensor] + static_cast<int32_t>(threadIdx.x);
       i < group.first_share[tensor + 1]; i += kThreads) {
    sum += sums[i];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) scales[tensor] = clip_factor(sqrt(sum), max_norm);
}

template <bool kAdaptive, typename Element>
__device__ void update_share(const TensorSlot& slot, const Share& share,
                             const UpdateFactors<Accumulator<Element>>& factors,
                             Accumulator<Element> scale) {
  using T = Accumulator<Element>;
  const Element* gradient = static_cast<const Element*>(slot.gradient);
  T* weight = static_cast<T*>(slot.weight);
  T* first = static_cast<T*>(slot.first_moment);
  T* second = static_cast<T*>(slot.second_moment);
  for (int64_t i = share.begin + threadIdx.x; i < share.end; i += kThreads) {
    T w = weight[i], m = first[i], v = second[i];
    update_element<kAdaptive>(factors, widened(gradient[i]) * scale, w, m, v);
    weight[i] = w, first[i] = m, second[i] = v;
    if constexpr (!std::is_same_v<Element, T>) {
      round_to(static_cast<Element*>(slot.parameter)[i], w);
    }
  }
}

template <typename Element>
__global__ void __launch_bounds__(kThreads)
    update_all(const __grid_constant__ TensorGroup group, const double* packed_factors,
               const double* scales) {
  using T = Accumulator<Element>;
  const Share share = own_share(group);
  const UpdateFactors<T> factors = factors_as<T>(unpacked(packed_factors));
  const T scale = scales ? static_cast<T>(scales[share.tensor]) : T(1);
  if (factors.adaptive) {
    update_share<true, Element>(group.slots[share.tensor], share, factors, scale);
  } else {
    update_share<false, Element>(group.slots[share.tensor], share, factors, scale);
  }
}

/// Calls work with a value of the element's C++ type.
template <typename Work>
void with_element(ElementType type, const Work& work) {
  switch (type) {
    case ElementType::kDouble:
      return work(double{});
    case ElementType::kBFloat16:
      return work(__nv_bfloat16{});
    case ElementType::kHalf:
      return work(__half{});
    case ElementType::kFloat:
      break;
  }
  work(float{});
}

}  // namespace

cudaError_t clip_scales(ElementType type, const TensorGroup& group, double max_norm, double* sums,
                        double* scales, cudaStream_t stream) {
  if (group.tensors == 0) return cudaSuccess;
  if (group.shares() > 0) {
    with_element(type, [&](auto element) {
      sum_squares<decltype(element)><<<group.shares(), kThreads, 0, stream>>>(group, sums);
    });
  }
  scales_from_sums<<<group.tensors, kThreads, 0, stream>>>(group, max_norm, sums, scales);
  return cudaGetLastError();
}

cudaError_t update_tensors(ElementType type, const TensorGroup& group, const double* factors,
                           const double* scales, cudaStream_t stream) {
  if (group.shares() == 0) return cudaSuccess;
  with_element(type, [&](auto element) {
    update_all<decltype(element)><<<group.shares(), kThreads, 0, stream>>>(group, factors, scales);
  });
  return cudaGetLastError();
}

}  // namespace fmmformer::train::cuda
