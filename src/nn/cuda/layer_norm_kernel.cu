// SPDX-License-Identifier: Apache-2.0
// A team of threads has a row in its registers: a part of a warp up to 128 columns, a warp up to
// 1024, beyond that a whole thread block. Thread t of the team has the groups of eight columns t, t
// + threads, ... in every row, so it can sum the gradients of its columns' weight and bias while
// rows pass.
#include "nn/cuda/layer_norm_kernel.h"

#include <algorithm>

#include "nn/cuda/element.cuh"
#include "nn/cuda/partial_sums.h"

namespace fmmformer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpSize = 32;
constexpr int kNarrowTeam = 8;          // for rows of up to 64 columns
constexpr int64_t kWarpColumns = 1024;  // the widest row of a warp: 4 groups a thread
// One wave of 132 multiprocessors: at width 256 in bf16 their registers hold 5 blocks of forward
// and 3 of backward. 4 forward, so that powers of two are cut evenly.
constexpr int64_t kForwardBlocks = 512;
constexpr int64_t kBackwardBlocks = 384;

template <typename T, int kTeamThreads, int kGroups, bool kWhole>
struct Shape {
  using Type = T;
  static constexpr int kTeam = kTeamThreads;
  static constexpr int kTeams = kThreads / kTeamThreads;
  static constexpr int kParts = kGroups;
  static constexpr int kColumns = kTeamThreads * kGroups * kGroup;  // at most
  static constexpr bool kEven = kWhole;
  static constexpr bool kAhead = kGroups <= 2;  // reads the next rows early; more would spill
  // Of a team at a time: one short row a thread is too little on its way to keep memory busy.
  static constexpr int kRows = kTeamThreads < kWarpSize ? 2 : 1;

  __device__ static int team() { return static_cast<int>(threadIdx.x) / kTeamThreads; }
  __device__ static int column(int part) {
    return (part * kTeamThreads + static_cast<int>(threadIdx.x) % kTeamThreads) * kGroup;
  }
  __device__ static int64_t first_row() {
    return static_cast<int64_t>(blockIdx.x) * kTeams + team();
  }
  /// From a team's row to its next.
  __device__ static int64_t row_step() { return static_cast<int64_t>(gridDim.x) * kTeams; }
  /// Whether the thread goes on: teams of one warp shuffle together, so they go on together, even
  /// where only the first still has a row.
  __device__ static bool has_row(int64_t row, int64_t rows) {
    constexpr int kTogether = kTeamThreads < kWarpSize ? kWarpSize / kTeamThreads : 1;
    return row - team() % kTogether < rows;
  }
};

template <typename S>
struct Row {
  Pack<typename S::Type> part[S::kParts];
};

/// Zeros when there is no such row.
template <typename S>
__device__ Row<S> load_row(const void* matrix, int64_t row, const NormRows& rows) {
  using T = typename S::Type;
  const int64_t width = row < rows.rows ? rows.width : 0;
  const T* from = static_cast<const T*>(matrix) + row * rows.width;
  Row<S> values;
#pragma unroll
  for (int p = 0; p < S::kParts; ++p) {
    values.part[p] = load_columns<T, S::kEven>(from, S::column(p), width);
  }
  return values;
}

/// The rows of a team at a time: `first`, first + row_step(), ...
template <typename S>
struct Rows {
  Row<S> row[S::kRows];
};

template <typename S>
__device__ Rows<S> load_rows(const void* matrix, int64_t first, const NormRows& rows) {
  Rows<S> values;
#pragma unroll
  for (int r = 0; r < S::kRows; ++r) {
    values.row[r] = load_row<S>(matrix, first + r * S::row_step(), rows);
  }
  return values;
}

/// A thread's columns in fp32.
template <typename S>
struct Columns {
  float value[S::kParts][kGroup];
};

template <typename S, typename Parameter>
__device__ Columns<S> load_parameter_of(const Parameter* parameter, int64_t width) {
  Columns<S> columns;
#pragma unroll
  for (int p = 0; p < S::kParts; ++p) {
#pragma unroll
    for (int e = 0; e < kGroup; ++e) {
      const int column = S::column(p) + e;
      columns.value[p][e] = column < width ? as_float(parameter[column]) : 0;
    }
  }
  return columns;
}

template <typename S>
__device__ Columns<S> load_parameter(const void* parameter, const NormRows& rows) {
  if (rows.parameter == Element::kFloat) {
    return load_parameter_of<S>(static_cast<const float*>(parameter), rows.width);
  }
  return load_parameter_of<S>(static_cast<const typename S::Type*>(parameter), rows.width);
}

/// The sum over a team in a fixed order: all its threads get the same bits. All threads of the
/// block must come here as often when a team is the whole block.
template <typename S>
__device__ float team_sum(float value) {
#pragma unroll
  for (int distance = min(S::kTeam, kWarpSize) / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
  }
  if constexpr (S::kTeam > kWarpSize) {
    static_assert(S::kTeams == 1, "barriers are the block's");
    constexpr int kWarps = S::kTeam / kWarpSize;
    __shared__ float of_warp[kWarps];
    __syncthreads();  // the last sum has been read
    if (threadIdx.x % kWarpSize == 0) of_warp[threadIdx.x / kWarpSize] = value;
    __syncthreads();
    value = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) value += of_warp[warp];
  }
  return value;
}

template <typename S>
__device__ void normalise_row(const Row<S>& x, int64_t row, const Columns<S>& weight,
                              const Columns<S>& bias, const NormForward& arguments) {
  using T = typename S::Type;
  const NormRows& rows = arguments.rows;
  const float share = 1.0f / static_cast<float>(rows.width);  // divisions cost as much as the row
  float sum = 0;
#pragma unroll
  for (int p = 0; p < S::kParts; ++p) {
#pragma unroll
    for (int e = 0; e < kGroup; ++e) sum += as_float(x.part[p].value[e]);
  }
  const float mean = team_sum<S>(sum) * share;
  float squares = 0;
#pragma unroll
  for (int p = 0; p < S::kParts; ++p) {
#pragma unroll
    for (int e = 0; e < kGroup; ++e) {
      const float centred = as_float(x.part[p].value[e]) - mean;
      if (S::column(p) + (S::kEven ? 0 : e) < rows.width) squares += centred * centred;
    }
  }
  const float scale = rsqrtf(team_sum<S>(squares) * share + arguments.eps);
  if (row >= rows.rows) return;
  if (S::column(0) == 0) rows.mean[row] = mean, rows.scale[row] = scale;
  T* out = static_cast<T*>(arguments.out) + row * rows.width;
#pragma unroll
  for (int p = 0; p < S::kParts; ++p) {
    Pack<T> result;
#pragma unroll
    for (int e = 0; e < kGroup; ++e) {
      const float normal = (as_float(x.part[p].value[e]) - mean) * scale;
      result.value[e] = from_float<T>(normal * weight.value[p][e] + bias.value[p][e]);
    }
    store_columns<T, S::kEven>(out, S::column(p), rows.width, result);
  }
}

template <typename S>
__global__ void __launch_bounds__(kThreads)
    normalise_rows(const __grid_constant__ NormForward arguments) {
  const NormRows& rows = arguments.rows;
  const Columns<S> weight = load_parameter<S>(rows.weight, rows);
  const Columns<S> bias = load_parameter<S>(arguments.bias, rows);
  const int64_t step = S::kRows * S::row_step();
  Rows<S> next = load_rows<S>(rows.x, S::first_row(), rows);
  for (int64_t first = S::first_row(); S::has_row(first, rows.rows); first += step) {
    const Rows<S> x = next;
    next = load_rows<S>(rows.x, first + step, rows);
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
      normalise_row<S>(x.row[r], first + r * S::row_step(), weight, bias, arguments);
    }
  }
}

/// The sum of the teams' columns, in their order, to a row of the partial sums.
template <typename S>
__device__ void store_sum_of_teams(const Columns<S>& sums, int64_t width, float* to) {
  if constexpr (S::kTeams == 1) {
#pragma unroll
    for (int p = 0; p < S::kParts; ++p) {
#pragma unroll
      for (int e = 0; e < kGroup; ++e) {
        if (S::column(p) + e < width) to[S::column(p) + e] = sums.value[p][e];
      }
    }
  } else {
    extern __shared__ float4 of_teams[];  // [kTeams, kColumns]
    float* shared = reinterpret_cast<float*>(of_teams);
    __syncthreads();  // the last sum has been read
#pragma unroll
    for (int p = 0; p < S::kParts; ++p) {
      const float* own = sums.value[p];
      float4* place = of_teams + (S::team() * S::kColumns + S::column(p)) / 4;
      place[0] = make_float4(own[0], own[1], own[2], own[3]);
      place[1] = make_float4(own[4], own[5], own[6], own[7]);
    }
    __syncthreads();
    for (int column = static_cast<int>(threadIdx.x); column < width; column += kThreads) {
      float sum = 0;
#pragma unroll
      for (int team = 0; team < S::kTeams; ++team) sum += shared[team * S::kColumns + column];
      to[column] = sum;
    }
  }
}

/// Sums over a team's rows, for the gradients of weight and bias.
template <typename S>
struct ParameterSums {
  Columns<S> weight = {}, bias = {};
};

/// grad_x = scale (g - mean(g) - normal mean(g normal)), where g = grad weight and normal is x
/// normalised; over the rows, grad_weight = sum(grad normal) and grad_bias = sum(grad).
template <typename S>
__device__ void row_backward(const Row<S>& x, const Row<S>& grad, int64_t row,
                             const Columns<S>& weight, const NormBackward& arguments,
                             ParameterSums<S>& sums) {
  using T = typename S::Type;
  const NormRows& rows = arguments.rows;
  const float share = 1.0f / static_cast<float>(rows.width);
  Row<S> other, of_input;
  if (arguments.other_grad) other = load_row<S>(arguments.other_grad, row, rows);
  if (arguments.input_grad) of_input = load_row<S>(arguments.input_grad, row, rows);
  const int64_t known = min(row, rows.rows - 1);
  const float mean = rows.mean[known], scale = rows.scale[known];
  const auto normal_of = [&](int p, int e) {
    return (as_float(x.part[p].value[e]) - mean) * scale;
  };
  const auto grad_of = [&](int p, int e) {
    const float own = as_float(grad.part[p].value[e]);
    return arguments.other_grad ? own + as_float(other.part[p].value[e]) : own;
  };
  float sum = 0, product = 0;
#pragma unroll
  for (int p = 0; p < S::kParts; ++p) {
#pragma unroll
    for (int e = 0; e < kGroup; ++e) {
      const float dy = grad_of(p, e), normal = normal_of(p, e), g = dy * weight.value[p][e];
      sum += g;
      product += g * normal;
      sums.weight.value[p][e] += dy * normal;
      sums.bias.value[p][e] += dy;
    }
  }
  const float mean_g = team_sum<S>(sum) * share, mean_product = team_sum<S>(product) * share;
  if (row >= rows.rows) return;
  T* out = static_cast<T*>(arguments.grad_x) + row * rows.width;
#pragma unroll
  for (int p = 0; p < S::kParts; ++p) {
    Pack<T> result;
#pragma unroll
    for (int e = 0; e < kGroup; ++e) {
      const float g = grad_of(p, e) * weight.value[p][e];
      const float own = scale * (g - mean_g - normal_of(p, e) * mean_product);
      result.value[e] =
          from_float<T>(arguments.input_grad ? own + as_float(of_input.part[p].value[e]) : own);
    }
    store_columns<T, S::kEven>(out, S::column(p), rows.width, result);
  }
}

template <typename S>
__global__ void __launch_bounds__(kThreads)
    normalise_rows_backward(const __grid_constant__ NormBackward arguments) {
  const NormRows& rows = arguments.rows;
  const Columns<S> weight = load_parameter<S>(rows.weight, rows);
  ParameterSums<S> sums;
  const int64_t step = S::kRows * S::row_step();
  Rows<S> next_x = load_rows<S>(rows.x, S::first_row(), rows);
  Rows<S> next_grad = load_rows<S>(arguments.grad, S::first_row(), rows);
  for (int64_t first = S::first_row(); S::has_row(first, rows.rows); first += step) {
    if (!S::kAhead && first != S::first_row()) {
      next_x = load_rows<S>(rows.x, first, rows);
      next_grad = load_rows<S>(arguments.grad, first, rows);
    }
    const Rows<S> x = next_x, grad = next_grad;
    if constexpr (S::kAhead) {
      next_x = load_rows<S>(rows.x, first + step, rows);
      next_grad = load_rows<S>(arguments.grad, first + step, rows);
    }
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
      row_backward<S>(x.row[r], grad.row[r], first + r * S::row_step(), weight, arguments, sums);
    }
  }
  float* partials = arguments.partials + static_cast<int64_t>(blockIdx.x) * 2 * rows.width;
  store_sum_of_teams<S>(sums.weight, rows.width, partials);
  store_sum_of_teams<S>(sums.bias, rows.width, partials + rows.width);
}

/// Threads that have a row.
int64_t team_of(int64_t width) {
  if (width > kWarpColumns) return kThreads;
  int64_t team = kNarrowTeam;
  while (team < kWarpSize && team * kGroup < width) team *= 2;
  return team;
}

/// Thread blocks for `rows`: a function of the shape alone.
int64_t blocks_for(int64_t rows, int64_t width, int64_t most) {
  const int64_t teams = kThreads / team_of(width);
  return std::min((rows + teams - 1) / teams, most);
}

/// work(a Shape that holds rows of this width)
template <typename T, bool kWhole, typename Work>
void with_width(int64_t width, const Work& work) {
  constexpr int64_t kGroupOfWarp = kWarpSize * kGroup, kGroupOfBlock = kThreads * kGroup;
  if (width <= kNarrowTeam * kGroup) return work(Shape<T, kNarrowTeam, 1, kWhole>{});
  if (width <= 2 * kNarrowTeam * kGroup) return work(Shape<T, 2 * kNarrowTeam, 1, kWhole>{});
  if (width <= kGroupOfWarp) return work(Shape<T, kWarpSize, 1, kWhole>{});
  if (width <= 2 * kGroupOfWarp) return work(Shape<T, kWarpSize, 2, kWhole>{});
  if (width <= kWarpColumns) return work(Shape<T, kWarpSize, 4, kWhole>{});
  if (width <= kGroupOfBlock) return work(Shape<T, kThreads, 1, kWhole>{});
  if (width <= 2 * kGroupOfBlock) return work(Shape<T, kThreads, 2, kWhole>{});
  work(Shape<T, kThreads, 4, kWhole>{});
}

template <typename Work>
void with_shape(const NormRows& rows, bool whole, const Work& work) {
  with_element(rows.element, [&](auto element) {
    using T = decltype(element);
    if (whole) return with_width<T, true>(rows.width, work);
    with_width<T, false>(rows.width, work);
  });
}

}  // namespace

cudaError_t layer_norm_forward(const NormForward& arguments, cudaStream_t on) {
  const NormRows& rows = arguments.rows;
  const auto blocks = static_cast<unsigned>(blocks_for(rows.rows, rows.width, kForwardBlocks));
  if (blocks == 0) return cudaSuccess;
  const bool whole = rows.width % kGroup == 0 && is_aligned(rows.x) && is_aligned(arguments.out);
  with_shape(rows, whole, [&](auto shape) {
    normalise_rows<decltype(shape)><<<blocks, kThreads, 0, on>>>(arguments);
  });
  return cudaGetLastError();
}

int64_t norm_parts(int64_t rows, int64_t width) { return blocks_for(rows, width, kBackwardBlocks); }

cudaError_t layer_norm_backward(const NormBackward& arguments, cudaStream_t on) {
  const NormRows& rows = arguments.rows;
  const int64_t parts = norm_parts(rows.rows, rows.width);
  if (parts > 0) {
    const bool whole = rows.width % kGroup == 0 && is_aligned(rows.x) &&
                       is_aligned(arguments.grad) && is_aligned(arguments.other_grad) &&
                       is_aligned(arguments.input_grad) && is_aligned(arguments.grad_x);
    with_shape(rows, whole, [&](auto shape) {
      using S = decltype(shape);
      constexpr size_t kShared = S::kTeams == 1 ? 0 : sizeof(float) * S::kTeams * S::kColumns;
      normalise_rows_backward<S>
          <<<static_cast<unsigned>(parts), kThreads, kShared, on>>>(arguments);
    });
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  }
  return add_partials({.partials = arguments.partials,
                       .parts = parts,
                       .sums = 2,
                       .width = rows.width,
                       .element = rows.parameter,
                       .out = {arguments.grad_weight, arguments.grad_bias}},
                      on);
}

}  // namespace fmmformer::cuda
