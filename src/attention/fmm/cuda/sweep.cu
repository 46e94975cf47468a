// SPDX-License-Identifier: Apache-2.0
// Which kernels serve a call, and the two small kernels between the sweeps.
#include "attention/fmm/cuda/sweep.h"

#include "attention/fmm/cuda/launcher.cuh"
#include "attention/fmm/cuda/roles/launcher.cuh"
#include "attention/fmm/cuda/tile.cuh"

namespace fmmformer::cuda {
namespace {

constexpr int kThreads = 256;

/// Calls body(launcher, what its passes carry, D padded) for the call's arithmetic and head size.
template <typename Body>
auto with_precise_launcher(int key_dim, const Body& body) {
  if (key_dim <= 16) return body(Launcher<Tf32x3, 16>(), PassShape<Tf32x3, 16>(), 16);
  if (key_dim <= 32) return body(Launcher<Tf32x3, 32>(), PassShape<Tf32x3, 32>(), 32);
  if (key_dim <= 64) return body(Launcher<Tf32x3, 64>(), PassShape<Tf32x3, 64>(), 64);
  if (key_dim <= 128) return body(Launcher<Tf32x3, 128>(), PassShape<Tf32x3, 128>(), 128);
  return body(Launcher<Tf32x3, 256>(), PassShape<Tf32x3, 256>(), 256);
}
template <typename Body>
auto with_bf16_launcher(int key_dim, const Body& body) {
  if (key_dim <= 16) return body(roles::Launcher<16>(), roles::PassShape<16>(), 16);
  if (key_dim <= 32) return body(roles::Launcher<32>(), roles::PassShape<32>(), 32);
  if (key_dim <= 64) return body(Launcher<Bf16, 64>(), PassShape<Bf16, 64>(), 64);
  if (key_dim <= 128) return body(Launcher<Bf16, 128>(), PassShape<Bf16, 128>(), 128);
  return body(Launcher<Bf16, 256>(), PassShape<Bf16, 256>(), 256);
}
template <typename Body>
auto with_launcher(bool precise, int head_dim, int value_dim, const Body& body) {
  const int key_dim = max(head_dim, min(value_dim, 64));
  return precise ? with_precise_launcher(key_dim, body) : with_bf16_launcher(key_dim, body);
}

// A thread an element of the state; segment after segment, eight loads under way at a time.
__global__ void scan_kernel(float* entries, float* totals, int64_t size, int64_t pairs,
                            int segments, int stride, int64_t totals_stride, Scan scan) {
  const int64_t index = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= pairs * size) return;
  const int64_t pair = index / size, element = index % size;
  float* at = entries + pair * segments * int64_t(stride) + element;
  constexpr int kAhead = 8;
  float sum = 0.f;
  for (int first = 0; first < segments; first += kAhead) {
    float own[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int s = first + i, segment = scan == Scan::kAfter ? segments - 1 - s : s;
      own[i] = s < segments ? at[int64_t(segment) * stride] : 0.f;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int s = first + i, segment = scan == Scan::kAfter ? segments - 1 - s : s;
      if (s < segments && scan != Scan::kTotal) at[int64_t(segment) * stride] = sum;
      sum += own[i];
    }
  }
  if (scan == Scan::kTotal) totals[pair * totals_stride + element] = sum;
}

cudaError_t launch_scan(float* entries, float* totals, int64_t size, int64_t offset, int64_t stride,
                        int64_t totals_stride, const SweepArgs& args, Scan scan,
                        cudaStream_t stream) {
  const int64_t pairs = args.batch * args.heads, blocks = (pairs * size + kThreads - 1) / kThreads;
  if (blocks == 0) return cudaSuccess;
  scan_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      entries + offset, totals ? totals + offset : nullptr, size, pairs,
      static_cast<int>(args.segments), static_cast<int>(stride), totals_stride, scan);
  return cudaGetLastError();
}

__device__ void store_weight(const WeightGradient& gradient, int64_t index, double value) {
  switch (gradient.type) {
    case 0:
      static_cast<float*>(gradient.data)[index] = static_cast<float>(value);
      break;
    case 1:
      static_cast<__nv_bfloat16*>(gradient.data)[index] =
          __float2bfloat16(static_cast<float>(value));
      break;
    case 2:
      static_cast<__half*>(gradient.data)[index] = __float2half(static_cast<float>(value));
      break;
    default:
      static_cast<double*>(gradient.data)[index] = value;
  }
}

// A block for each number of a gradient: sums over everything that the number stands for, always in
// the same order.
__global__ void reduce_kernel(const float* sums, int64_t batch, int64_t heads, int64_t segments,
                              int all_maps, int value_dim, WeightGradient near_weight,
                              WeightGradient far_weight) {
  const int64_t near_count = near_weight.maps * near_weight.heads * near_weight.channels;
  const bool near = blockIdx.x < near_count;
  const WeightGradient& gradient = near ? near_weight : far_weight;
  const int64_t index = near ? blockIdx.x : blockIdx.x - near_count;
  const int64_t channel = index % gradient.channels,
                head = index / gradient.channels % gradient.heads;
  const int64_t map = index / (gradient.channels * gradient.heads);
  const int64_t first_map = near ? all_maps : (gradient.maps == 1 ? 0 : map);
  const int64_t maps = near || gradient.maps > 1 ? 1 : all_maps;
  const int64_t some_heads = gradient.heads == 1 ? heads : 1,
                some_channels = gradient.channels == 1 ? value_dim : 1;
  const int64_t count = batch * segments * some_heads * maps * some_channels;
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    const int64_t c = i % some_channels + channel, rest = i / some_channels;
    const int64_t l = rest % maps + first_map, rest2 = rest / maps;
    const int64_t segment = rest2 % segments, rest3 = rest2 / segments;
    const int64_t h = rest3 % some_heads + head, b = rest3 / some_heads;
    const int64_t block = (b * heads + h) * segments + segment;
    sum += sums[(block * (all_maps + 1) + l) * value_dim + c];
  }
  __shared__ double parts[kThreads];
  parts[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) store_weight(gradient, index, parts[0]);
}

}  // namespace

PassLimits pass_limits(bool precise, int head_dim, int value_dim) {
  return with_launcher(precise, head_dim, value_dim, [](auto, auto shape, int key_dim) {
    return PassLimits{key_dim, shape.kValueDim, shape.kMaps, shape.kWarps * 16};
  });
}

cudaError_t sum_states(const SweepArgs& args, bool of_queries, cudaStream_t stream) {
  return with_launcher(args.precise, args.head_dim, args.value_dim, [&](auto launcher, auto, int) {
    return launcher.sum_states(args, of_queries, stream);
  });
}
cudaError_t forward_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_launcher(args.precise, args.head_dim, args.value_dim, [&](auto launcher, auto, int) {
    return launcher.forward_sweep(args, stream);
  });
}
cudaError_t query_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_launcher(args.precise, args.head_dim, args.value_dim, [&](auto launcher, auto, int) {
    return launcher.query_sweep(args, stream);
  });
}
cudaError_t key_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_launcher(args.precise, args.head_dim, args.value_dim,
                       [&](auto launcher, auto, int) { return launcher.key_sweep(args, stream); });
}

cudaError_t scan_states(const SweepArgs& args, const States& states, Scan scan,
                        const States& totals, cudaStream_t stream) {
  const int64_t rows = int64_t(states.maps) * args.head_dim,
                total_rows = int64_t(totals.maps) * args.head_dim;
  const int64_t used = int64_t(args.maps) * args.head_dim,
                skipped = int64_t(args.first_map) * args.head_dim;
  const cudaError_t error =
      launch_scan(states.sums, totals.sums, used * states.row_length, skipped * states.row_length,
                  rows * states.row_length, total_rows * states.row_length, args, scan, stream);
  if (error != cudaSuccess) return error;
  return launch_scan(states.key_sums, totals.key_sums, used, skipped, rows, total_rows, args, scan,
                     stream);
}

cudaError_t reduce_weight_sums(const SweepArgs& args, const WeightGradient& near_weight,
                               const WeightGradient& far_weight, cudaStream_t stream) {
  const int64_t count = near_weight.maps * near_weight.heads * near_weight.channels +
                        far_weight.maps * far_weight.heads * far_weight.channels;
  if (count == 0) return cudaSuccess;
  reduce_kernel<<<static_cast<unsigned>(count), kThreads, 0, stream>>>(
      args.weight_sums, args.batch, args.heads, args.segments, args.all_maps, args.all_channels,
      near_weight, far_weight);
  return cudaGetLastError();
}

}  // namespace fmmformer::cuda
