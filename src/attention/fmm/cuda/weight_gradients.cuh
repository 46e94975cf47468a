// SPDX-License-Identifier: Apache-2.0
// Gradients of blend weights from weight_sums, in fp64 and always in the same order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "attention/fmm/cuda/sweep.h"

namespace fmmformer::cuda {

__device__ inline void store_weight(const WeightGradient& gradient, int64_t index, double value) {
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

/// Whether their indices need more than 32 bits.
__host__ __device__ inline bool has_many_weight_sums(const SweepArgs& args) {
  const int64_t sums =
      args.batch * args.heads * args.segments * (args.all_maps + 1) * args.all_channels;
  return sums + 256 >= INT32_MAX;  // a block's threads further
}

/// The sums that one number of both gradients stands for, the near field's numbers first, among
/// those of all thread blocks, [blocks, all_maps + 1, channels]. Of a number that stands for all
/// channels, only every `channel_step`-th holds anything. Index: 32 bits where they suffice, since
/// divisions are most of what this costs.
template <typename Index>
struct WeightTerms {
  bool near;
  const WeightGradient& gradient;
  int64_t index;  // of the number in its gradient
  Index heads, segments, fields, all_channels, channel_step;
  Index head, first_map, channel;           // where they begin
  Index some_heads, maps, channels, count;  // how many there are

  __device__ WeightTerms(const SweepArgs& args, Index channel_step, int64_t number)
      : near(number < args.near_gradient.count()),
        gradient(near ? args.near_gradient : args.far_gradient),
        index(near ? number : number - args.near_gradient.count()),
        heads(args.heads),
        segments(args.segments),
        fields(args.all_maps + 1),
        all_channels(args.all_channels),
        channel_step(channel_step) {
    const Index row = gradient.channels, map = row * Index(gradient.heads);  // their lengths
    channel = Index(index) % row, head = Index(index) % map / row;
    const bool of_one_map = near || gradient.maps > 1;
    first_map = near ? args.all_maps : Index(index) / map;
    maps = of_one_map ? 1 : args.all_maps;
    some_heads = gradient.heads == 1 ? heads : 1;
    channels = gradient.channels == 1 ? (all_channels + channel_step - 1) / channel_step : 1;
    count = args.batch * segments * some_heads * maps * channels;
  }
  /// The sum of every `step`-th of them, from number `i` on.
  __device__ double sum(const float* sums, Index i, Index step) const {
    double result = 0;
    if (maps * channels * some_heads * segments == 1) {
      // One of each batch entry: nothing to divide, and many are on their way at once.
      const Index stride = heads * fields * all_channels;
      const float* first = sums + (head * fields + first_map) * all_channels + channel;
#pragma unroll 8
      for (; i < count; i += step) result += first[i * stride];
    } else {
      for (; i < count; i += step) result += (*this)(sums, i);
    }
    return result;
  }

 private:
  __device__ float operator()(const float* sums, Index i) const {
    const Index c = i % channels * channel_step + channel, rest = i / channels;
    const Index l = rest % maps + first_map, rest2 = rest / maps;
    const Index segment = rest2 % segments, rest3 = rest2 / segments;
    const Index h = rest3 % some_heads + head, b = rest3 / some_heads;
    return sums[(((b * heads + h) * segments + segment) * fields + l) * all_channels + c];
  }
};

/// A number of both gradients, by all threads of a block, up to 256.
template <typename Index>
__device__ void reduce_weight_sums_as(const SweepArgs& args, int channel_step, int64_t number) {
  const WeightTerms<Index> terms(args, channel_step, number);
  double sum = terms.sum(args.weight_sums, threadIdx.x, blockDim.x);
#pragma unroll
  for (int other = 1; other < 32; other *= 2) sum += __shfl_xor_sync(~0u, sum, other);
  __shared__ double of_warps[8];
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int warp = 1; warp < blockDim.x / 32; ++warp) sum += of_warps[warp];
  store_weight(terms.gradient, terms.index, sum);
}
__device__ inline void reduce_weight_sums(const SweepArgs& args, int channel_step, int64_t number) {
  if (has_many_weight_sums(args))
    reduce_weight_sums_as<int64_t>(args, channel_step, number);
  else
    reduce_weight_sums_as<int32_t>(args, channel_step, number);
}

}  // namespace fmmformer::cuda
