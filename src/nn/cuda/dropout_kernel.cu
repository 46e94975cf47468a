// SPDX-License-Identifier: Apache-2.0
// Compiled without contraction of products and sums, so that fp32 gives the bits of the CPU.
#include "nn/cuda/dropout_kernel.h"

#include <algorithm>
#include <cstdint>

#include "nn/cuda/dropout_draw.cuh"
#include "nn/cuda/element.cuh"
#include "nn/cuda/gelu.cuh"

namespace fmmformer::cuda {
namespace {

enum class Job { kMultiply, kAdd, kRelu, kReluGradient, kGelu };

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = int64_t{1} << 20;  // beyond, threads take several groups

template <typename T, Job kJob>
__device__ float result(float x, float bias, float other, float factor) {
  if constexpr (kJob == Job::kMultiply) return x * factor;
  if constexpr (kJob == Job::kAdd) return other + (x + bias) * factor;
  if constexpr (kJob == Job::kReluGradient) return other > 0 ? x * factor : 0;
  const float shifted = x + bias;
  if constexpr (kJob == Job::kGelu) return gelu<T>(shifted) * factor;
  return (shifted < 0 ? 0 : shifted) * factor;  // a NaN stays one
}

/// kWhole: all groups are whole, aligned, and lie in one row.
template <typename T, bool kWhole>
__device__ Pack<T> load(const void* from, int64_t group, int64_t elements) {
  const T* values = static_cast<const T*>(from);
  if constexpr (kWhole) {
    return reinterpret_cast<const Pack<T>*>(values)[group];
  } else {
    Pack<T> pack;
    for (int e = 0; e < kGroup; ++e) {
      const int64_t index = group * kGroup + e;
      pack.value[e] = index < elements ? values[index] : from_float<T>(0);
    }
    return pack;
  }
}

/// A division of 64 bits costs more than all else in a group: where 32 are enough, they must do.
__device__ int64_t column_of(int64_t element, int64_t columns) {
  if (element >> 32 != 0 || columns >> 32 != 0) return element % columns;
  return static_cast<uint32_t>(element) % static_cast<uint32_t>(columns);
}

template <typename T, bool kWhole>
__device__ Pack<T> load_bias(const void* from, int64_t group, int64_t columns) {
  const T* values = static_cast<const T*>(from);
  if constexpr (kWhole) {
    return *reinterpret_cast<const Pack<T>*>(values + column_of(group * kGroup, columns));
  } else {
    Pack<T> pack;
    for (int e = 0; e < kGroup; ++e) pack.value[e] = values[column_of(group * kGroup + e, columns)];
    return pack;
  }
}

template <typename T, bool kWhole>
__device__ void store(void* to, int64_t group, int64_t elements, const Pack<T>& pack) {
  T* values = static_cast<T*>(to);
  if constexpr (kWhole) {
    reinterpret_cast<Pack<T>*>(values)[group] = pack;
  } else {
    for (int e = 0; e < kGroup && group * kGroup + e < elements; ++e) {
      values[group * kGroup + e] = pack.value[e];
    }
  }
}

template <typename T, Job kJob, bool kWhole>
__global__ void __launch_bounds__(kThreads) sweep_groups(Draw draw, DropoutSweep sweep) {
  const int64_t groups = (sweep.elements + kGroup - 1) / kGroup;
  const uint64_t seed = seed_of(draw);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (int64_t group = first; group < groups; group += int64_t{gridDim.x} * kThreads) {
    const Factors factors = factors_of(draw, seed, group);
    const Pack<T> x = load<T, kWhole>(sweep.x, group, sweep.elements);
    Pack<T> bias, other, out;
    if (sweep.bias) bias = load_bias<T, kWhole>(sweep.bias, group, sweep.columns);
    if (sweep.other) other = load<T, kWhole>(sweep.other, group, sweep.elements);
#pragma unroll
    for (int e = 0; e < kGroup; ++e) {
      out.value[e] = from_float<T>(
          result<T, kJob>(as_float(x.value[e]), sweep.bias ? as_float(bias.value[e]) : 0,
                          sweep.other ? as_float(other.value[e]) : 0, factors.value[e]));
    }
    store<T, kWhole>(sweep.out, group, sweep.elements, out);
  }
}

bool has_whole_groups(const DropoutSweep& sweep) {
  return sweep.elements % kGroup == 0 && (!sweep.bias || sweep.columns % kGroup == 0) &&
         is_aligned(sweep.x) && is_aligned(sweep.bias) && is_aligned(sweep.other) &&
         is_aligned(sweep.out);
}

template <typename T, Job kJob>
cudaError_t launch(const Draw& draw, const DropoutSweep& sweep, cudaStream_t on) {
  const int64_t groups = (sweep.elements + kGroup - 1) / kGroup;
  const int64_t blocks = std::min((groups + kThreads - 1) / kThreads, kMostBlocks);
  if (blocks == 0) return cudaSuccess;
  if (has_whole_groups(sweep)) {
    sweep_groups<T, kJob, true><<<static_cast<unsigned>(blocks), kThreads, 0, on>>>(draw, sweep);
  } else {
    sweep_groups<T, kJob, false><<<static_cast<unsigned>(blocks), kThreads, 0, on>>>(draw, sweep);
  }
  return cudaGetLastError();
}

template <Job kJob>
cudaError_t run(const DropoutStream& stream, const DropoutSweep& sweep, cudaStream_t on) {
  const Draw draw = kJob == Job::kReluGradient ? without_mask(stream.probability) : draw_of(stream);
  return with_element(sweep.element, [&](auto element) {
    return launch<decltype(element), kJob>(draw, sweep, on);
  });
}

}  // namespace

cudaError_t dropout_multiply(const DropoutStream& stream, const DropoutSweep& sweep,
                             cudaStream_t on) {
  return run<Job::kMultiply>(stream, sweep, on);
}
cudaError_t dropout_add(const DropoutStream& stream, const DropoutSweep& sweep, cudaStream_t on) {
  return run<Job::kAdd>(stream, sweep, on);
}
cudaError_t dropout_relu(const DropoutStream& stream, const DropoutSweep& sweep, cudaStream_t on) {
  return run<Job::kRelu>(stream, sweep, on);
}
cudaError_t dropout_gelu(const DropoutStream& stream, const DropoutSweep& sweep, cudaStream_t on) {
  return run<Job::kGelu>(stream, sweep, on);
}
cudaError_t dropout_relu_gradient(const DropoutStream& stream, const DropoutSweep& sweep,
                                  cudaStream_t on) {
  return run<Job::kReluGradient>(stream, sweep, on);
}

}  // namespace fmmformer::cuda
