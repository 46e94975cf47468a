// SPDX-License-Identifier: Apache-2.0
// Compiled without contraction of products and sums, so that fp32 gives the bits of the CPU.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "attention/philox.h"
#include "nn/cuda/dropout_kernel.h"

namespace fmmformer::cuda {
namespace {

enum class Job { kMultiply, kAdd, kRelu, kReluGradient };

constexpr int kThreads = 256;
// Elements a thread takes at a time: two blocks of random words, 16 bytes of a half type.
constexpr int kGroup = 8;
constexpr int64_t kMostBlocks = int64_t{1} << 20;  // beyond, threads take several groups

template <typename T>
struct alignas(16) Pack {
  T value[kGroup];
};

__device__ float as_float(float x) { return x; }
__device__ float as_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ float as_float(__half x) { return __half2float(x); }

template <typename T>
__device__ T from_float(float x);
template <>
__device__ float from_float(float x) {
  return x;
}
template <>
__device__ __nv_bfloat16 from_float(float x) {
  return __float2bfloat16(x);
}
template <>
__device__ __half from_float(float x) {
  return __float2half(x);
}

/// What x is multiplied by, for the elements of a group.
struct Factors {
  float value[kGroup];
};

__device__ Factors factors_of(int64_t group, uint64_t seed, uint32_t site, uint32_t threshold,
                              float kept) {
  Factors factors;
#pragma unroll
  for (int half = 0; half < kGroup / 4; ++half) {
    const auto block = static_cast<uint64_t>(group) * (kGroup / 4) + half;
    const PhiloxBlock words =
        philox_block({{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), site, 1u}},
                     static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
#pragma unroll
    for (int e = 0; e < 4; ++e) factors.value[4 * half + e] = words.word[e] < threshold ? 0 : kept;
  }
  return factors;
}

template <Job kJob>
__device__ float result(float x, float bias, float other, float factor) {
  if constexpr (kJob == Job::kMultiply) return x * factor;
  if constexpr (kJob == Job::kAdd) return other + (x + bias) * factor;
  if constexpr (kJob == Job::kReluGradient) return other > 0 ? x * factor : 0;
  const float shifted = x + bias;
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

template <typename T, bool kWhole>
__device__ Pack<T> load_bias(const void* from, int64_t group, int64_t columns) {
  const T* values = static_cast<const T*>(from);
  if constexpr (kWhole) {
    return *reinterpret_cast<const Pack<T>*>(values + group * kGroup % columns);
  } else {
    Pack<T> pack;
    for (int e = 0; e < kGroup; ++e) pack.value[e] = values[(group * kGroup + e) % columns];
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

struct Draw {
  const int64_t* seed;  // null: nothing is dropped
  uint32_t site;
  uint32_t threshold;
  float kept;
};

template <typename T, Job kJob, bool kWhole>
__global__ void __launch_bounds__(kThreads) sweep_groups(Draw draw, DropoutSweep sweep) {
  const int64_t groups = (sweep.elements + kGroup - 1) / kGroup;
  const uint64_t seed = draw.seed ? static_cast<uint64_t>(*draw.seed) : 0;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (int64_t group = first; group < groups; group += int64_t{gridDim.x} * kThreads) {
    Factors factors;
    if (draw.seed) {
      factors = factors_of(group, seed, draw.site, draw.threshold, draw.kept);
    } else {
      for (float& factor : factors.value) factor = draw.kept;
    }
    const Pack<T> x = load<T, kWhole>(sweep.x, group, sweep.elements);
    Pack<T> bias, other, out;
    if (sweep.bias) bias = load_bias<T, kWhole>(sweep.bias, group, sweep.columns);
    if (sweep.other) other = load<T, kWhole>(sweep.other, group, sweep.elements);
#pragma unroll
    for (int e = 0; e < kGroup; ++e) {
      out.value[e] =
          from_float<T>(result<kJob>(as_float(x.value[e]), sweep.bias ? as_float(bias.value[e]) : 0,
                                     sweep.other ? as_float(other.value[e]) : 0, factors.value[e]));
    }
    store<T, kWhole>(sweep.out, group, sweep.elements, out);
  }
}

bool is_aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

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
  const bool draws = stream.probability > 0 && kJob != Job::kReluGradient;
  const Draw draw{.seed = draws ? stream.seed : nullptr,
                  .site = stream.site,
                  .threshold = dropout_threshold(stream.probability),
                  .kept = static_cast<float>(1.0 / (1.0 - stream.probability))};
  switch (sweep.element) {
    case DropoutElement::kBFloat16:
      return launch<__nv_bfloat16, kJob>(draw, sweep, on);
    case DropoutElement::kHalf:
      return launch<__half, kJob>(draw, sweep, on);
    case DropoutElement::kFloat:
      break;
  }
  return launch<float, kJob>(draw, sweep, on);
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
cudaError_t dropout_relu_gradient(const DropoutStream& stream, const DropoutSweep& sweep,
                                  cudaStream_t on) {
  return run<Job::kReluGradient>(stream, sweep, on);
}

}  // namespace fmmformer::cuda
