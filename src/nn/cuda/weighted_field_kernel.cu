// SPDX-License-Identifier: Apache-2.0
#include "nn/cuda/weighted_field_kernel.h"

#include "nn/cuda/element.cuh"

namespace fmmformer::cuda {
namespace {

constexpr int kThreads = 256;

/// A thread has eight neighbouring columns of a row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    add_weighted(const __grid_constant__ WeightedField arguments) {
  const int64_t group = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t groups_of_row = arguments.columns / kGroup;
  if (group >= arguments.rows * groups_of_row) return;
  const float* weight = arguments.weight + group % groups_of_row * kGroup;
  const Pack<T> rest = static_cast<const Pack<T>*>(arguments.rest)[group];
  const Pack<T> field = static_cast<const Pack<T>*>(arguments.field)[group];
  Pack<T> out;
#pragma unroll
  for (int e = 0; e < kGroup; ++e) {
    out.value[e] = from_float<T>(as_float(rest.value[e]) + weight[e] * as_float(field.value[e]));
  }
  static_cast<Pack<T>*>(arguments.out)[group] = out;
}

}  // namespace

cudaError_t add_weighted_field(const WeightedField& arguments, cudaStream_t on) {
  const int64_t groups = arguments.rows * (arguments.columns / kGroup);
  if (groups == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((groups + kThreads - 1) / kThreads);
  with_element(arguments.element, [&](auto element) {
    add_weighted<decltype(element)><<<blocks, kThreads, 0, on>>>(arguments);
  });
  return cudaGetLastError();
}

}  // namespace fmmformer::cuda
