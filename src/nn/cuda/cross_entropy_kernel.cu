// SPDX-License-Identifier: Apache-2.0
#include "nn/cuda/cross_entropy_kernel.h"

#include <cmath>

#include "nn/cuda/element.cuh"

namespace fmmformer::cuda {
namespace {

constexpr int kThreads = 256, kWarpSize = 32, kWarps = kThreads / kWarpSize;
constexpr int kBatch = 4;  // groups that a thread reads before it uses the first

/// sum_i exp(x_i) = exp(peak) total, for numbers that come one after another.
struct LogSum {
  float peak = -INFINITY;
  float total = 0;

  __device__ void add(const LogSum& other) {
    const float higher = fmaxf(peak, other.peak);
    if (higher == -INFINITY) return;
    total = total * __expf(peak - higher) + other.total * __expf(other.peak - higher);
    peak = higher;
  }
  __device__ float value() const { return peak + logf(total); }
};

/// Eight logits; -inf beyond the classes.
template <typename T>
__device__ void load_logits(const T* row, int64_t column, int64_t classes, float (&x)[kGroup]) {
  Pack<T> pack = load_columns<T, true>(row, column, classes);
#pragma unroll
  for (int e = 0; e < kGroup; ++e) {
    x[e] = column + e < classes ? as_float(pack.value[e]) : -INFINITY;
  }
}

__device__ LogSum sum_of(const float (&x)[kGroup]) {
  LogSum sum;
#pragma unroll
  for (int e = 0; e < kGroup; ++e) sum.peak = fmaxf(sum.peak, x[e]);
  if (sum.peak == -INFINITY) return sum;
#pragma unroll
  for (int e = 0; e < kGroup; ++e) sum.total += __expf(x[e] - sum.peak);
  return sum;
}

/// Over the thread block, in a fixed order; thread 0 has the result.
__device__ LogSum block_sum(LogSum sum) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    LogSum other;
    other.peak = __shfl_down_sync(0xFFFFFFFFu, sum.peak, distance);
    other.total = __shfl_down_sync(0xFFFFFFFFu, sum.total, distance);
    sum.add(other);
  }
  __shared__ float peaks[kWarps], totals[kWarps];
  if (threadIdx.x % kWarpSize == 0) {
    peaks[threadIdx.x / kWarpSize] = sum.peak;
    totals[threadIdx.x / kWarpSize] = sum.total;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < kWarps; ++warp) {
      LogSum other;
      other.peak = peaks[warp], other.total = totals[warp];
      sum.add(other);
    }
  }
  return sum;
}

/// A thread block has a row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    row_losses(const __grid_constant__ LogitRows rows, float* losses) {
  const int64_t row = blockIdx.x;
  const T* logits = static_cast<const T*>(rows.logits) + row * rows.stride;
  constexpr int64_t kStep = int64_t{kThreads} * kGroup;
  LogSum sum;
  for (int64_t first = int64_t{threadIdx.x} * kGroup; first < rows.classes;
       first += kBatch * kStep) {
    float x[kBatch][kGroup];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) load_logits(logits, first + b * kStep, rows.classes, x[b]);
#pragma unroll
    for (int b = 0; b < kBatch; ++b) sum.add(sum_of(x[b]));
  }
  sum = block_sum(sum);
  if (threadIdx.x != 0) return;
  rows.sums[row] = sum.value();
  losses[row] = sum.value() - as_float(logits[rows.targets[row]]);
}

/// A thread has eight columns of kCrossEntropyRows rows.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    row_gradients(const __grid_constant__ LogitRows rows, const float* scale, float* partials) {
  __shared__ float sums[kCrossEntropyRows], scales[kCrossEntropyRows];
  __shared__ int64_t targets[kCrossEntropyRows];
  const int64_t begin = int64_t{blockIdx.y} * kCrossEntropyRows;
  const int count = static_cast<int>(min(kCrossEntropyRows, rows.rows - begin));
  if (static_cast<int>(threadIdx.x) < count) {
    sums[threadIdx.x] = rows.sums[begin + threadIdx.x];
    scales[threadIdx.x] = scale[begin + threadIdx.x];
    targets[threadIdx.x] = rows.targets[begin + threadIdx.x];
  }
  __syncthreads();
  const int64_t column = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kGroup;
  if (column >= rows.stride) return;
  T* logits = static_cast<T*>(rows.logits) + begin * rows.stride;
  float total[kGroup] = {};
#pragma unroll 4
  for (int r = 0; r < count; ++r, logits += rows.stride) {
    float x[kGroup];
    load_logits(logits, column, rows.classes, x);
    const int64_t own = targets[r] - column;
    Pack<T> gradient;
#pragma unroll
    for (int e = 0; e < kGroup; ++e) {
      const float share = __expf(x[e] - sums[r]) - (own == e ? 1.f : 0.f);
      gradient.value[e] = from_float<T>(share * scales[r]);
      total[e] += share * scales[r];
    }
    store_columns<T, true>(logits, column, rows.stride, gradient);
  }
  float* to = partials + int64_t{blockIdx.y} * rows.stride + column;
#pragma unroll
  for (int e = 0; e < kGroup; ++e) to[e] = total[e];
}

}  // namespace

cudaError_t cross_entropy_losses(const LogitRows& rows, float* losses, cudaStream_t on) {
  if (rows.rows == 0) return cudaSuccess;
  with_element(rows.element, [&](auto element) {
    row_losses<decltype(element)>
        <<<static_cast<unsigned>(rows.rows), kThreads, 0, on>>>(rows, losses);
  });
  return cudaGetLastError();
}

cudaError_t cross_entropy_gradients(const LogitRows& rows, const float* scale, float* partials,
                                    cudaStream_t on) {
  if (rows.rows == 0) return cudaSuccess;
  const int64_t columns = int64_t{kThreads} * kGroup;
  const dim3 blocks(static_cast<unsigned>((rows.stride + columns - 1) / columns),
                    static_cast<unsigned>((rows.rows + kCrossEntropyRows - 1) / kCrossEntropyRows));
  with_element(rows.element, [&](auto element) {
    row_gradients<decltype(element)><<<blocks, kThreads, 0, on>>>(rows, scale, partials);
  });
  return cudaGetLastError();
}

}  // namespace fmmformer::cuda
