// SPDX-License-Identifier: Apache-2.0
// One decoding step: the formula of fast_weight_attention.h for a single token, a thread block for
// a head. W is read once and written once; between lies the one sum over its rows that the token's
// key needs.
#include "attention/fast_weight/cuda/decode.h"

#include "attention/fmm/cuda/features.cuh"

namespace fmmformer::cuda::fast_weight {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;
constexpr int kDim = static_cast<int>(kMaxHeadDim);

/// Sums of two numbers over the block, to every thread.
__device__ void block_sums(float& a, float& b) {
  __shared__ float parts[2 * kWarps];
#pragma unroll
  for (int other = kWarpSize / 2; other > 0; other /= 2) {
    a += __shfl_xor_sync(~0u, a, other);
    b += __shfl_xor_sync(~0u, b, other);
  }
  const int warp = threadIdx.x / kWarpSize;
  __syncthreads();
  if (lane_id() == 0) parts[2 * warp] = a, parts[2 * warp + 1] = b;
  __syncthreads();
  a = b = 0.f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) a += parts[2 * w], b += parts[2 * w + 1];
}

/// Features of a key or query into shared memory; channel c is thread c's.
__device__ void make_features(float* features, const StepArgs& args, const void* x, int64_t pair) {
  const int c = static_cast<int>(threadIdx.x);
  float value = 0.f;
  if (c < args.head_dim) {
    with_map(args.feature_map, [&](auto constant) {
      value = map_value<Tf32x3, decltype(constant)::value>(
          element_value(x, pair * args.head_dim + c, args.element));
    });
  }
  if (args.unit_features) {
    float sum = value, nothing = 0.f;
    block_sums(sum, nothing);
    value = sum == 0.f ? 0.f : value / sum;
  }
  features[c] = value;
}

__device__ float divisor_of(const StepArgs& args, float sum) {
  if (!is_signed(args.feature_map)) return sum + args.eps;
  return fabsf(sum) > args.eps ? sum : copysignf(args.eps, sum);
}

/// A part of the memory's rows for each channel, then their sum over the parts.
struct Parts {
  int count, part, channel;  // channel: of the first round

  __device__ explicit Parts(int value_dim) {
    int across = 1;
    while (across < value_dim) across *= 2;
    count = kThreads / across, part = static_cast<int>(threadIdx.x) / across,
    channel = static_cast<int>(threadIdx.x) % across;
  }
};

__global__ void __launch_bounds__(kThreads) step_kernel(const __grid_constant__ StepArgs args) {
  __shared__ float x[kThreads], y[kThreads], sums[kThreads], written[kDim];
  const int64_t pair = blockIdx.x, b = pair / args.heads;
  const int h = static_cast<int>(pair % args.heads), dim = args.head_dim,
            value_dim = args.value_dim, c = static_cast<int>(threadIdx.x);
  if (args.token_mask && !args.token_mask[b]) {
    if (c < value_dim) store_element(args.out, pair * value_dim + c, args.element, 0.f);
    return;
  }
  make_features(x, args, args.k, pair), make_features(y, args, args.q, pair);
  float overlap = 0.f, row_sum = 0.f;
  if (c < dim) {
    float* key_sums = args.key_sums + pair * dim;
    const float before = key_sums[c];
    overlap = x[c] * before, row_sum = y[c] * (before + x[c]);
    key_sums[c] = before + x[c];
  }
  block_sums(overlap, row_sum);
  float write = weight_value(args.beta, 0, h, static_cast<int>(b)), erase = write;
  if (args.normaliser == FastWeightNormaliser::kOutputAndKey) {
    if (args.tokens[b] == 0) overlap = 1.f;
    const float norm = divisor_of(args, overlap);
    write *= overlap / norm;
    erase = write / norm;
  }
  const float norm =
      args.normaliser == FastWeightNormaliser::kNone ? 1.f : divisor_of(args, row_sum);
  const Parts parts(value_dim);
  float* memory = args.memory + pair * dim * value_dim;
  const bool inside = parts.channel < value_dim;
  float sum = 0.f;
  if (inside) {
#pragma unroll 8
    for (int d = parts.part; d < dim; d += parts.count)
      sum += x[d] * memory[int64_t(d) * value_dim + parts.channel];
  }
  sums[c] = sum;
  __syncthreads();
  const int across = kThreads / parts.count;
  if (c < value_dim) {
    float retrieved = 0.f;
    for (int part = 0; part < parts.count; ++part) retrieved += sums[part * across + c];
    const float v = element_value(args.v, pair * value_dim + c, args.element);
    written[c] = write * v - erase * retrieved;
  }
  __syncthreads();
  sum = 0.f;
  if (inside) {
    const float own = written[parts.channel];
#pragma unroll 8
    for (int d = parts.part; d < dim; d += parts.count) {
      float& number = memory[int64_t(d) * value_dim + parts.channel];
      const float next = number + x[d] * own;
      number = next;
      sum += y[d] * next;
    }
  }
  sums[c] = sum;
  __syncthreads();
  if (c < value_dim) {
    float read = 0.f;
    for (int part = 0; part < parts.count; ++part) read += sums[part * across + c];
    store_element(args.out, pair * value_dim + c, args.element, args.far_scale / norm * read);
  }
}

__global__ void __launch_bounds__(kThreads) count_kernel(const __grid_constant__ StepArgs args) {
  const int64_t b = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (b < args.batch && (!args.token_mask || args.token_mask[b])) ++args.tokens[b];
}

}  // namespace

cudaError_t decode_step(const StepArgs& args, cudaStream_t stream) {
  if (args.batch == 0) return cudaSuccess;
  if (args.heads > 0) {
    step_kernel<<<static_cast<unsigned>(args.batch * args.heads), kThreads, 0, stream>>>(args);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
  }
  count_kernel<<<static_cast<unsigned>((args.batch + kThreads - 1) / kThreads), kThreads, 0,
                 stream>>>(args);
  return cudaGetLastError();
}

}  // namespace fmmformer::cuda::fast_weight
