// SPDX-License-Identifier: Apache-2.0
// Which kernels serve a call, and the small kernels between the sweeps.
#include "attention/fast_weight/cuda/sweep.h"

#include "attention/fast_weight/cuda/gradients.cuh"
#include "attention/fast_weight/cuda/launcher.cuh"

namespace fmmformer::cuda::fast_weight {
namespace {

constexpr int kThreads = 256;

template <typename Math, template <typename, int> typename Launcher, typename Body>
auto with_dim(int dim, const Body& body) {
  if (dim <= 16) return body(Launcher<Math, 16>());
  if (dim <= 32) return body(Launcher<Math, 32>());
  if (dim <= 64) return body(Launcher<Math, 64>());
  if (dim <= 128) return body(Launcher<Math, 128>());
  return body(Launcher<Math, 256>());
}
template <template <typename, int> typename Launcher, typename Body>
auto with_launcher(bool precise, int dim, const Body& body) {
  return precise ? with_dim<Split, Launcher>(dim, body) : with_dim<Tf32, Launcher>(dim, body);
}
template <typename Body>
cudaError_t with_walks(const SweepArgs& args, const Body& body) {
  return with_launcher<WalkLauncher>(args.precise, args.head_dim, body);
}
template <typename Body>
cudaError_t with_gradients(const SweepArgs& args, const Body& body) {
  return with_launcher<GradientLauncher>(args.precise, max(args.head_dim, args.value_dim), body);
}

/// What the hungriest kernel for a size needs.
template <typename Math, int kDim>
struct SharedBytes {
  static constexpr int kBytes = GradientGroup<GradientShape<kDim>, 2>::kBytes;
};

/// A block for each segment, a warp for each chunk in turn.
template <int kDim>
using SumShape = Shape<kDim, 16, 1, (kDim > 128 ? 2 : 4)>;
template <typename Math, int kDim>
__global__ void __launch_bounds__(4 * kWarpSize)
    sum_kernel(const __grid_constant__ SweepArgs args) {
  using S = SumShape<kDim>;
  __shared__ float tiles[S::kWarps][kChunk * S::kKeyStride], sums[S::kWarps][kDim];
  const Place place(args, blockIdx.x);
  const Team<S> team;
  float* tile = tiles[team.index];
  float own[kDim / kWarpSize + 1] = {};
#pragma unroll 1
  for (int chunk = place.begin + team.index; chunk < place.end; chunk += S::kWarps) {
    make_features<Math>(team, tile, args.k, args, place, chunk);
    __syncwarp();
#pragma unroll
    for (int j = 0; j * kWarpSize < kDim; ++j) {
      const int c = min(lane_id() + j * kWarpSize, kDim - 1);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) own[j] += tile[i * S::kKeyStride + c];
    }
    __syncwarp();
  }
#pragma unroll
  for (int j = 0; j * kWarpSize < kDim; ++j) {
    if (lane_id() + j * kWarpSize < kDim) sums[team.index][lane_id() + j * kWarpSize] = own[j];
  }
  __syncthreads();
  for (int c = threadIdx.x; c < args.head_dim; c += S::kThreads) {
    float sum = 0.f;
    for (int w = 0; w < S::kWarps; ++w) sum += sums[w][c];
    args.states.sums[blockIdx.x * int64_t(args.head_dim) + c] = sum;
  }
}
template <typename Math, int kDim>
struct SumLauncher {
  static cudaError_t run(const SweepArgs& args, cudaStream_t stream) {
    const auto blocks = static_cast<unsigned>(args.batch * args.heads * args.segments);
    constexpr int kThreads = SumShape<kDim>::kThreads;
    if (blocks > 0) sum_kernel<Math, kDim><<<blocks, kThreads, 0, stream>>>(args);
    return cudaGetLastError();
  }
};

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
constexpr int kJoinOwn = static_cast<int>(kMaxHeadDim) * kJoinColumns / kThreads;

/// One (batch entry, head) and some columns of its states: [segments, dim, value_dim].
struct Join {
  float* states;
  const float* transitions;  // T^T: [segments, dim, dim]
  int dim, value_dim, columns;

  __device__ float* at(int s, int row, int column) const {
    return states + (int64_t(s) * dim + row) * value_dim + column;
  }
  /// A thread's numbers of a segment's own part B.
  __device__ void load_own(float (&own)[kJoinOwn], int s) const {
#pragma unroll
    for (int i = 0; i < kJoinOwn; ++i) {
      const int index = static_cast<int>(threadIdx.x) + i * kThreads;
      const int row = index / kJoinColumns, column = index % kJoinColumns;
      own[i] = row < dim && column < columns ? *at(s, row, column) : 0.f;
    }
  }
  /// Numbers `first`, `first + apart`, .. of row d of T.
  __device__ void load_row(float (&row)[kJoinRows], int s, int d, int first, int apart) const {
#pragma unroll
    for (int i = 0; i < kJoinRows; ++i) {
      const int k = first + i * apart;
      row[i] = k < dim && d < dim ? transitions[(int64_t(s) * dim + k) * dim + d] : 0.f;
    }
  }
};

/// state[s] += T_s state[s - 1] (or s + 1), segment after segment. A thread has one row of the
/// state and a part of the sum over the other; the parts meet in shared memory. What does not
/// depend on the state is asked for a step ahead: otherwise the walk would wait for memory.
__global__ void __launch_bounds__(kThreads)
    join_kernel(Join join, int64_t pair_states, int segments, bool of_gradients) {
  __shared__ float state[kMaxHeadDim][kJoinColumns], parts[kThreads][kJoinColumns + 1];
  const int dim = join.dim;
  join.states += blockIdx.x * pair_states + int64_t(blockIdx.y) * kJoinColumns;
  join.transitions += int64_t(blockIdx.x) * segments * dim * dim;
  join.columns = min(kJoinColumns, join.value_dim - static_cast<int>(blockIdx.y) * kJoinColumns);
  int across = 1;  // threads side by side on the rows
  while (across < dim) across *= 2;
  const int apart = kThreads / across, d = static_cast<int>(threadIdx.x) % across,
            group = static_cast<int>(threadIdx.x) / across;
  const int step = of_gradients ? -1 : 1, start = of_gradients ? segments - 1 : 0;
  float own[kJoinOwn], row[kJoinRows];
  join.load_own(own, start);
#pragma unroll
  for (int i = 0; i < kJoinOwn; ++i) {
    const int index = static_cast<int>(threadIdx.x) + i * kThreads;
    state[index / kJoinColumns][index % kJoinColumns] = own[i];
  }
  join.load_own(own, start + step);
  join.load_row(row, start + step, d, group, apart);
  __syncthreads();
  for (int done = 1; done < segments; ++done) {
    const int s = start + done * step, next = done + 1 < segments ? s + step : s;
    float sum[kJoinColumns] = {}, next_own[kJoinOwn];
    join.load_own(next_own, next);
    for (int first = group; first < dim; first += apart * kJoinRows) {
      const bool more = first + apart * kJoinRows < dim;
      float next_row[kJoinRows];
      join.load_row(next_row, more ? s : next, d, more ? first + apart * kJoinRows : group, apart);
#pragma unroll
      for (int i = 0; i < kJoinRows; ++i) {
        const int k = min(first + i * apart, dim - 1);
#pragma unroll
        for (int c = 0; c < kJoinColumns; ++c) sum[c] += row[i] * state[k][c];
      }
#pragma unroll
      for (int i = 0; i < kJoinRows; ++i) row[i] = next_row[i];
    }
#pragma unroll
    for (int c = 0; c < kJoinColumns; ++c) parts[threadIdx.x][c] = sum[c];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kJoinOwn; ++i) {
      const int index = static_cast<int>(threadIdx.x) + i * kThreads;
      const int to = index / kJoinColumns, column = index % kJoinColumns;
      if (to < dim && column < join.columns) {
        for (int part = 0; part < apart; ++part) own[i] += parts[part * across + to][column];
        *join.at(s, to, column) = state[to][column] = own[i];
      }
      own[i] = next_own[i];
    }
    __syncthreads();
  }
}

}  // namespace

int shared_bytes(int head_dim, int value_dim) {
  return with_launcher<SharedBytes>(false, max(head_dim, value_dim),
                                    [](auto size) { return size.kBytes; });
}

cudaError_t sum_keys(const SweepArgs& args, cudaStream_t stream) {
  return with_launcher<SumLauncher>(args.precise, args.head_dim,
                                    [&](auto launcher) { return launcher.run(args, stream); });
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
  const Join join{of_gradients ? args.gradients.memories : args.states.memories, args.transitions,
                  args.head_dim, args.value_dim, 0};
  const int64_t pair_states = int64_t(args.segments) * args.head_dim * args.value_dim;
  join_kernel<<<blocks, kThreads, 0, stream>>>(join, pair_states, args.segments, of_gradients);
  return cudaGetLastError();
}

cudaError_t transition_sweep(const SweepArgs& args, bool of_gradients, cudaStream_t stream) {
  return with_walks(
      args, [&](auto launcher) { return launcher.transition_sweep(args, of_gradients, stream); });
}
cudaError_t forward_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_walks(args, [&](auto launcher) { return launcher.forward_sweep(args, stream); });
}
cudaError_t write_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_walks(args, [&](auto launcher) { return launcher.write_sweep(args, stream); });
}
cudaError_t solve_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_walks(args, [&](auto launcher) { return launcher.solve_sweep(args, stream); });
}
cudaError_t query_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_gradients(args, [&](auto launcher) { return launcher.query_sweep(args, stream); });
}
cudaError_t key_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_gradients(args, [&](auto launcher) { return launcher.key_sweep(args, stream); });
}

bool is_short(const SweepArgs& args) {
  return args.segments == 1 && args.head_dim <= 16 && args.value_dim <= 16;
}
cudaError_t short_backward(const SweepArgs& args, cudaStream_t stream) {
  return args.precise ? ShortLauncher<Split, 16>::backward(args, stream)
                      : ShortLauncher<Tf32, 16>::backward(args, stream);
}

}  // namespace fmmformer::cuda::fast_weight
