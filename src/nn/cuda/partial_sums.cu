// SPDX-License-Identifier: Apache-2.0
#include "nn/cuda/partial_sums.h"

#include "nn/cuda/element.cuh"

namespace fmmformer::cuda {
namespace {

constexpr int kSide = 32;  // columns of a thread block, and threads that share a column

__global__ void __launch_bounds__(kSide* kSide)
    add_parts(const __grid_constant__ PartialSums arguments) {
  __shared__ float sums[kSide][kSide + 1];
  const int64_t columns = arguments.sums * arguments.width;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kSide;
  const int64_t column = first + threadIdx.x;
  float sum = 0;
  if (column < columns) {
#pragma unroll 16  // loads under way at a time: there is nothing else to wait with
    for (int64_t part = threadIdx.y; part < arguments.parts; part += kSide) {
      sum += arguments.partials[part * columns + column];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  // Now a warp has a column.
  sum = sums[threadIdx.x][threadIdx.y];
#pragma unroll
  for (int distance = kSide / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
  }
  const int64_t own = first + threadIdx.y;
  if (threadIdx.x == 0 && own < columns) {
    const int which = own < arguments.width ? 0 : own < 2 * arguments.width ? 1 : 2;
    store_element(arguments.out[which], arguments.element, own - which * arguments.width, sum);
  }
}

}  // namespace

cudaError_t add_partials(const PartialSums& arguments, cudaStream_t on) {
  const int64_t columns = arguments.sums * arguments.width;
  if (columns == 0) return cudaSuccess;
  add_parts<<<static_cast<unsigned>((columns + kSide - 1) / kSide), dim3(kSide, kSide), 0, on>>>(
      arguments);
  return cudaGetLastError();
}

}  // namespace fmmformer::cuda
