// SPDX-License-Identifier: Apache-2.0
#include "attention/fmm/cuda/decode.h"

#include "attention/fmm/cuda/features.cuh"

namespace fmmformer::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;

__device__ float warp_sum(float x) {
  for (int other = kWarpSize / 2; other > 0; other /= 2) x += __shfl_xor_sync(~0u, x, other);
  return x;
}

/// Sum of `x` over the block, to every thread. `parts`: kWarps numbers of shared memory.
__device__ float block_sum(float x, float* parts) {
  x = warp_sum(x);
  __syncthreads();  // the numbers of the last sum have been read
  if (lane_id() == 0) parts[threadIdx.x / kWarpSize] = x;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += parts[w];
  return sum;
}

/// f(x) of a row [dim] in shared memory.
__device__ void make_features(float* features, const float* x, int dim, FeatureMap map, bool unit,
                              float* parts) {
  float sum = 0;
  with_map(map, [&](auto constant) {
    for (int c = threadIdx.x; c < dim; c += kThreads)
      sum += features[c] = map_value<Tf32x3, decltype(constant)::value>(x[c]);
  });
  if (!unit) return;
  sum = block_sum(sum, parts);
  const float inverse = sum == 0.f ? 0.f : 1.f / sum;
  for (int c = threadIdx.x; c < dim; c += kThreads) features[c] *= inverse;
}

/// Softmax over the keys of the ring and the token's own.
__device__ void add_near(const StepArgs& args, int64_t b, int64_t h, const float* q, const float* k,
                         const float* v, float* out, float* sums, float* parts) {
  const int64_t ring = b * args.left * args.heads + h;
  const int warp = threadIdx.x / kWarpSize, lane = lane_id();
  const auto score_of = [&](int64_t s) {
    float score = 0;
    for (int c = lane; c < args.head_dim; c += kWarpSize) {
      score += q[c] * (s < args.left
                           ? element_value(args.keys, (ring + s * args.heads) * args.head_dim + c,
                                           args.element)
                           : k[c]);
    }
    return warp_sum(score) * args.near_scale * kLog2E;
  };
  // Every warp takes every kWarps-th key, with a running maximum of its own; the warps' sums meet
  // at the end.
  float peak = -INFINITY, total = 0;
  constexpr int kMost = kMaxHeadDim / kWarpSize;
  float sum[kMost] = {};
  for (int64_t s = warp; s <= args.left; s += kWarps) {
    if (s < args.left && !args.live[b * args.left + s]) continue;
    const float score = score_of(s), highest = fmaxf(peak, score);
    const float shrink = exp2f(peak - highest), probability = exp2f(score - highest);
    peak = highest, total = total * shrink + probability;
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      const int e = lane + i * kWarpSize;
      if (e >= args.value_dim) break;
      const float value =
          s < args.left ? element_value(args.values, (ring + s * args.heads) * args.value_dim + e,
                                        args.element)
                        : v[e];
      sum[i] = sum[i] * shrink + probability * value;
    }
  }
  __syncthreads();
  if (lane == 0) parts[warp] = peak;
  __syncthreads();
  float highest = -INFINITY;
  for (int w = 0; w < kWarps; ++w) highest = fmaxf(highest, parts[w]);
  const float shrink = exp2f(peak - highest);
  const float all = block_sum(lane == 0 ? total * shrink : 0.f, parts);
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int e = lane + i * kWarpSize;
    if (e < args.value_dim) sums[warp * args.value_dim + e] = sum[i] * shrink;
  }
  __syncthreads();
  for (int e = threadIdx.x; e < args.value_dim; e += kThreads) {
    float value = 0;
    for (int w = 0; w < kWarps; ++w) value += sums[w * args.value_dim + e];
    out[e] += weight_value(args.near_weight, 0, h, e) * value / all;
  }
  __syncthreads();
}

/// Adds the token to one map's sums and reads the query's far field from them. Threads share the
/// matrix by columns, and by rows where there are more threads than columns.
__device__ void add_far(const StepArgs& args, int64_t pair, int64_t h, int map, const float* q,
                        const float* k, const float* v, float* out, float* sums, float* parts) {
  const int dim = args.head_dim, value_dim = args.value_dim;
  float* key_sums = args.far_key_sums + (pair * args.maps + map) * dim;
  float* matrix = args.far_sums + (pair * args.maps + map) * dim * int64_t(value_dim);
  float row_sum = 0;
  for (int c = threadIdx.x; c < dim; c += kThreads) {
    const float sum = key_sums[c] + k[c];
    key_sums[c] = sum;
    row_sum += q[c] * sum;
  }
  row_sum = block_sum(row_sum, parts);
  const int groups = max(kThreads / value_dim, 1), group = threadIdx.x / value_dim;
  for (int e = threadIdx.x % value_dim; e < value_dim && group < groups; e += kThreads) {
    float numerator = 0;
#pragma unroll 8
    for (int c = group; c < dim; c += groups) {
      const float sum = matrix[int64_t(c) * value_dim + e] + k[c] * v[e];
      matrix[int64_t(c) * value_dim + e] = sum;
      numerator += q[c] * sum;
    }
    sums[group * value_dim + e] = numerator;
  }
  __syncthreads();
  float norm = 1.f;
  if (args.normaliser == Normaliser::kRowSum) {
    norm = !is_signed(args.feature_maps[map]) ? row_sum + args.eps
           : fabsf(row_sum) > args.eps        ? row_sum
                                              : copysignf(args.eps, row_sum);
  }
  for (int e = threadIdx.x; e < value_dim; e += kThreads) {
    float value = 0;
    for (int i = 0; i < groups; ++i) value += sums[i * value_dim + e];
    out[e] += weight_value(args.far_weight, map, h, e) * args.far_scale * value / norm;
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads) step_kernel(const __grid_constant__ StepArgs args) {
  __shared__ float q[kMaxHeadDim], k[kMaxHeadDim], v[kMaxHeadDim], out[kMaxHeadDim];
  __shared__ float q_features[kMaxHeadDim], k_features[kMaxHeadDim];
  __shared__ float sums[kWarps * kMaxHeadDim];  // also [kThreads / Dv groups, Dv]
  __shared__ float parts[kWarps];
  const int64_t pair = blockIdx.x, b = pair / args.heads, h = pair % args.heads;
  const bool live = !args.token_mask || args.token_mask[b];
  for (int c = threadIdx.x; c < args.head_dim; c += kThreads) {
    q[c] = element_value(args.q, pair * args.head_dim + c, args.element);
    k[c] = element_value(args.k, pair * args.head_dim + c, args.element);
  }
  for (int e = threadIdx.x; e < args.value_dim; e += kThreads) {
    v[e] = element_value(args.v, pair * args.value_dim + e, args.element);
    out[e] = 0.f;
  }
  __syncthreads();
  if (live) {
    if (args.has_near) add_near(args, b, h, q, k, v, out, sums, parts);
    for (int l = 0; l < args.maps; ++l) {
      make_features(q_features, q, args.head_dim, args.feature_maps[l], args.unit_features, parts);
      make_features(k_features, k, args.head_dim, args.feature_maps[l], args.unit_features, parts);
      __syncthreads();
      add_far(args, pair, h, l, q_features, k_features, v, out, sums, parts);
    }
    if (args.left > 0) {  // the oldest key has just been seen for the last time
      const int64_t slot = (b * args.left + *args.position % args.left) * args.heads + h;
      for (int c = threadIdx.x; c < args.head_dim; c += kThreads) {
        store_element(args.keys, slot * args.head_dim + c, args.element, k[c]);
      }
      for (int e = threadIdx.x; e < args.value_dim; e += kThreads) {
        store_element(args.values, slot * args.value_dim + e, args.element, v[e]);
      }
    }
  }
  for (int e = threadIdx.x; e < args.value_dim; e += kThreads) {
    store_element(args.out, pair * args.value_dim + e, args.element, out[e]);
  }
}

// All heads have read the ring's flags and the position by now.
__global__ void advance_kernel(const __grid_constant__ StepArgs args) {
  const int64_t position = *args.position;
  for (int64_t b = threadIdx.x; b < args.batch && args.left > 0; b += blockDim.x) {
    args.live[b * args.left + position % args.left] = !args.token_mask || args.token_mask[b];
  }
  __syncthreads();
  if (threadIdx.x == 0) *args.position = position + 1;
}

}  // namespace

cudaError_t decode_step(const StepArgs& args, cudaStream_t stream) {
  if (args.batch * args.heads > 0) {
    step_kernel<<<static_cast<unsigned>(args.batch * args.heads), kThreads, 0, stream>>>(args);
  }
  advance_kernel<<<1, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace fmmformer::cuda
