// SPDX-License-Identifier: Apache-2.0
// Which kernels serve a call, and the small kernels between the sweeps.
#include "attention/fast_weight/cuda/sweep.h"

#include "attention/fast_weight/cuda/launcher.cuh"
#include "attention/fast_weight/cuda/tiles.cuh"

namespace fmmformer::cuda::fast_weight {
namespace {

constexpr int kThreads = 256;

template <typename Math, template <typename, int> typename Launcher, typename Body>
cudaError_t with_dim(int dim, const Body& body) {
  if (dim <= 16) return body(Launcher<Math, 16>());
  if (dim <= 32) return body(Launcher<Math, 32>());
  if (dim <= 64) return body(Launcher<Math, 64>());
  if (dim <= 128) return body(Launcher<Math, 128>());
  return body(Launcher<Math, 256>());
}
template <template <typename, int> typename Launcher, typename Body>
cudaError_t with_launcher(bool precise, int dim, const Body& body) {
  return precise ? with_dim<Split, Launcher>(dim, body) : with_dim<Tf32, Launcher>(dim, body);
}
template <typename Body>
cudaError_t with_walks(const SweepArgs& args, const Body& body) {
  return with_launcher<WalkLauncher>(args.precise, args.head_dim, body);
}
template <typename Body>
cudaError_t with_gradients(const SweepArgs& args, const Body& body) {
  const int dim = args.head_dim > 128 ? args.head_dim : args.value_dim;
  return with_launcher<GradientLauncher>(args.precise, dim, body);
}

/// A block for each segment, a warp for each chunk in turn; tiles in shared memory,
/// [warps][16][..].
template <typename Math>
__global__ void __launch_bounds__(kThreads)
    sum_kernel(const __grid_constant__ SweepArgs args, int group) {
  extern __shared__ __align__(16) float memory[];
  const Place place(args, blockIdx.x);
  const int stride = stride_of(args.head_dim), key_dim = by_sixteen(args.head_dim);
  float *tile = memory + place.warp * kChunk * stride, *sums = memory + group * kChunk * stride;
  for (int c = threadIdx.x; c < group * key_dim; c += blockDim.x) sums[c] = 0.f;
  __syncthreads();
  float* own = sums + place.warp * key_dim;
  for (int chunk = place.begin + place.warp; chunk < place.end; chunk += group) {
    make_features<Math>(tile, stride, args.k, args, place, chunk);
    __syncwarp();
    for (int c = lane_id(); c < key_dim; c += kWarpSize) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) own[c] += tile[i * stride + c];
    }
    __syncwarp();
  }
  __syncthreads();
  for (int c = threadIdx.x; c < args.head_dim; c += blockDim.x) {
    float sum = 0.f;
    for (int w = 0; w < group; ++w) sum += sums[w * key_dim + c];
    args.states.sums[blockIdx.x * int64_t(args.head_dim) + c] = sum;
  }
}

/// A thread a number; segment after segment, eight loads under way at a time.
__global__ void __launch_bounds__(kThreads)
    accumulate_kernel(float* sums, int64_t pairs, int segments, int dim, bool from_the_last) {
  const int64_t index = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= pairs * dim) return;
  float* at = sums + index / dim * segments * dim + index % dim;
  constexpr int kAhead = 8;
  float sum = 0.f;
  for (int first = 0; first < segments; first += kAhead) {
    float own[kAhead];
    const auto place = [&](int i) {
      return int64_t(from_the_last ? segments - 1 - first - i : first + i) * dim;
    };
#pragma unroll
    for (int i = 0; i < kAhead; ++i) own[i] = first + i < segments ? at[place(i)] : 0.f;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= segments) break;
      sum += own[i];
      at[place(i)] = sum;
    }
  }
}

constexpr int kJoinColumns = 8;  // of the state, for a thread block
constexpr int kJoinRows = 16;    // of a transition that a thread asks for at a time

/// state[s] += T_s state[s - 1] (or s + 1), segment after segment. A thread has one row of the
/// state and a part of the sum over the other; the parts meet in shared memory.
__global__ void __launch_bounds__(kThreads)
    join_kernel(float* states, const float* transitions, int segments, int dim, int value_dim,
                bool of_gradients) {
  __shared__ float state[kMaxHeadDim][kJoinColumns], parts[kThreads][kJoinColumns + 1];
  const int64_t pair = blockIdx.x;
  const int first_column = static_cast<int>(blockIdx.y) * kJoinColumns;
  const int columns = min(kJoinColumns, value_dim - first_column);
  int across = 1;  // threads side by side on the rows
  while (across < dim) across *= 2;
  const int groups = kThreads / across, d = static_cast<int>(threadIdx.x) % across,
            group = static_cast<int>(threadIdx.x) / across;
  const auto at = [&](int s, int row, int column) {
    return states + ((pair * segments + s) * dim + row) * value_dim + first_column + column;
  };
  const int step = of_gradients ? -1 : 1;
  int s = of_gradients ? segments - 1 : 0;
  for (int i = threadIdx.x; i < dim * kJoinColumns; i += kThreads) {
    const int row = i / kJoinColumns, column = i % kJoinColumns;
    state[row][column] = column < columns ? *at(s, row, column) : 0.f;
  }
  __syncthreads();
  for (int done = 1; done < segments; ++done) {
    s += step;
    const float* transition = transitions + (pair * segments + s) * dim * dim;
    float sum[kJoinColumns] = {};
    for (int first = group; first < dim; first += groups * kJoinRows) {
      float row[kJoinRows];
#pragma unroll
      for (int i = 0; i < kJoinRows; ++i) {
        const int k = first + i * groups;
        row[i] = k < dim && d < dim ? transition[int64_t(k) * dim + d] : 0.f;
      }
#pragma unroll
      for (int i = 0; i < kJoinRows; ++i) {
        const int k = min(first + i * groups, dim - 1);
#pragma unroll
        for (int c = 0; c < kJoinColumns; ++c) sum[c] += row[i] * state[k][c];
      }
    }
#pragma unroll
    for (int c = 0; c < kJoinColumns; ++c) parts[threadIdx.x][c] = sum[c];
    __syncthreads();
    for (int i = threadIdx.x; i < dim * kJoinColumns; i += kThreads) {
      const int row = i / kJoinColumns, column = i % kJoinColumns;
      if (column >= columns) continue;
      float number = *at(s, row, column);
      for (int g = 0; g < groups; ++g) number += parts[g * across + row][column];
      *at(s, row, column) = state[row][column] = number;
    }
    __syncthreads();
  }
}

}  // namespace

cudaError_t sum_keys(const SweepArgs& args, const Limits&, cudaStream_t stream) {
  constexpr int kWarps = kThreads / kWarpSize;
  // Tiles of four warps fit in what every GPU has, for heads of any size.
  const int group = args.head_dim > 64 ? 2 : kWarps / 2;
  const int64_t bytes =
      group * (kChunk * stride_of(args.head_dim) + by_sixteen(args.head_dim)) * sizeof(float);
  const dim3 blocks(static_cast<unsigned>(args.batch * args.heads * args.segments));
  const int threads = group * kWarpSize;
  return args.precise ? launch(sum_kernel<Split>, args, group, bytes, blocks, threads, stream)
                      : launch(sum_kernel<Tf32>, args, group, bytes, blocks, threads, stream);
}

cudaError_t accumulate(const SweepArgs& args, float* sums, bool from_the_last,
                       cudaStream_t stream) {
  const int64_t pairs = args.batch * args.heads, numbers = pairs * args.head_dim;
  if (numbers == 0) return cudaSuccess;
  accumulate_kernel<<<static_cast<unsigned>((numbers + kThreads - 1) / kThreads), kThreads, 0,
                      stream>>>(sums, pairs, args.segments, args.head_dim, from_the_last);
  return cudaGetLastError();
}

cudaError_t join_states(const SweepArgs& args, bool of_gradients, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(args.batch * args.heads),
                    (args.value_dim + kJoinColumns - 1) / kJoinColumns);
  if (blocks.x == 0) return cudaSuccess;
  float* states = of_gradients ? args.gradients.memories : args.states.memories;
  join_kernel<<<blocks, kThreads, 0, stream>>>(states, args.transitions, args.segments,
                                               args.head_dim, args.value_dim, of_gradients);
  return cudaGetLastError();
}

cudaError_t transition_sweep(const SweepArgs& args, bool of_gradients, const Limits& limits,
                             cudaStream_t stream) {
  return with_walks(args, [&](auto launcher) {
    return launcher.transition_sweep(args, of_gradients, limits, stream);
  });
}
cudaError_t forward_sweep(const SweepArgs& args, const Limits& limits, cudaStream_t stream) {
  return with_walks(args,
                    [&](auto launcher) { return launcher.forward_sweep(args, limits, stream); });
}
cudaError_t write_sweep(const SweepArgs& args, const Limits& limits, cudaStream_t stream) {
  return with_walks(args,
                    [&](auto launcher) { return launcher.write_sweep(args, limits, stream); });
}
cudaError_t solve_sweep(const SweepArgs& args, const Limits& limits, cudaStream_t stream) {
  return with_walks(args,
                    [&](auto launcher) { return launcher.solve_sweep(args, limits, stream); });
}
cudaError_t query_sweep(const SweepArgs& args, const Limits& limits, cudaStream_t stream) {
  return with_gradients(args,
                        [&](auto launcher) { return launcher.query_sweep(args, limits, stream); });
}
cudaError_t key_sweep(const SweepArgs& args, const Limits& limits, cudaStream_t stream) {
  return with_gradients(args,
                        [&](auto launcher) { return launcher.key_sweep(args, limits, stream); });
}

}  // namespace fmmformer::cuda::fast_weight
