// SPDX-License-Identifier: Apache-2.0
// Gradients of blend weights from the sums that a sweep's blocks have left: for sweep.cu alone.
#pragma once

#include "attention/fmm/cuda/launch.cuh"
#include "attention/fmm/cuda/tile.cuh"
#include "attention/fmm/cuda/weight_gradients.cuh"

namespace fmmformer::cuda {
namespace {

constexpr int kThreads = 256;  // of a block, in sweep.cu's other kernel, too

// A block has kNumbers neighbouring numbers of a gradient, whose sums lie side by side where they
// are of different channels: sums over everything that a number stands for, always in the same
// order.
template <typename Index, int kNumbers>
__global__ void reduce_kernel(const __grid_constant__ SweepArgs args, int channel_step) {
  constexpr int kShares = kThreads / kNumbers;  // threads of a number
  const int share = threadIdx.x / kNumbers;
  const WeightTerms<Index> terms(args, channel_step,
                                 int64_t(blockIdx.x) * kNumbers + threadIdx.x % kNumbers);
  __shared__ double parts[kThreads];
  parts[threadIdx.x] = terms.sum(args.weight_sums, share, kShares);
  __syncthreads();
  for (int half = kShares / 2; half > 0; half /= 2) {
    if (share < half) parts[threadIdx.x] += parts[threadIdx.x + half * kNumbers];
    __syncthreads();
  }
  if (share == 0) store_weight(terms.gradient, terms.index, parts[threadIdx.x]);
}

// The same where a number stands for one head, channel and map, and sequences are not cut: a block
// has a warp's width of channels of a head and field, `rows` sums of each. Nothing is divided,
// which would take longer than all else.
__global__ void reduce_rows_kernel(const __grid_constant__ SweepArgs args, int rows) {
  constexpr int kShares = kThreads / kWarpSize;
  const int64_t channel = blockIdx.x * kWarpSize + threadIdx.x, head = blockIdx.y,
                field = blockIdx.z;
  const bool near = field == args.all_maps;
  const WeightGradient& gradient = near ? args.near_gradient : args.far_gradient;
  if (!gradient.data) return;
  const int64_t fields = args.all_maps + 1, row_length = args.heads * fields * args.all_channels;
  await_kernel_before();
  const float* first = args.weight_sums + (head * fields + field) * args.all_channels + channel;
  double sum = 0;
#pragma unroll 8
  for (int row = threadIdx.y; row < rows; row += kShares) sum += first[row * row_length];
  __shared__ double parts[kShares][kWarpSize];
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0) return;
  for (int share = 1; share < kShares; ++share) sum += parts[share][threadIdx.x];
  store_weight(gradient, ((near ? 0 : field) * args.heads + head) * args.all_channels + channel,
               sum);
}
/// Whether it serves a call.
bool reduces_in_rows(const SweepArgs& args) {
  const auto fits = [&](const WeightGradient& gradient, int maps) {
    return !gradient.data || (gradient.maps == maps && gradient.heads == args.heads &&
                              gradient.channels == args.all_channels);
  };
  return args.segments == 1 && args.all_channels % kWarpSize == 0 && fits(args.near_gradient, 1) &&
         fits(args.far_gradient, args.all_maps);
}

}  // namespace
}  // namespace fmmformer::cuda
