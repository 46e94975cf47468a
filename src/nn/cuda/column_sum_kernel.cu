// SPDX-License-Identifier: Apache-2.0
// A thread has eight neighbouring columns; `lanes` threads have a row, or a tile of a wide one, and
// the threads of a block that many rows at a time.
#include "nn/cuda/column_sum_kernel.h"

#include <algorithm>

#include "nn/cuda/dropout_draw.cuh"
#include "nn/cuda/element.cuh"
#include "nn/cuda/gelu.cuh"

namespace fmmformer::cuda {
namespace {

enum class Job { kPlain, kMultiply, kReluGradient, kGeluGradient, kWeightedGradient };

constexpr int kThreads = 256;
constexpr int kMostLanes = 32;           // a warp reads 512 bytes of a row in a half type
constexpr int kBatch = 4;                // rows that a thread reads before it uses the first
constexpr int64_t kWantedBlocks = 1024;  // one wave of 132 multiprocessors

/// How a matrix is cut: a function of its shape alone.
struct Cut {
  int lanes;
  int64_t tiles;  // of a row
  int64_t rows_of_block;
  int64_t parts;  // blocks along the rows
};

Cut cut_of(int64_t rows, int64_t columns) {
  const int64_t groups = (columns + kGroup - 1) / kGroup;
  Cut cut{.lanes = 1, .tiles = 1, .rows_of_block = 0, .parts = 0};
  while (cut.lanes < kMostLanes && cut.lanes < groups) cut.lanes *= 2;
  cut.tiles = (groups + cut.lanes - 1) / cut.lanes;
  const int64_t rows_at_once = kThreads / cut.lanes, least = rows_at_once * kBatch;
  const int64_t wanted = std::max<int64_t>(1, kWantedBlocks / cut.tiles);
  cut.rows_of_block = std::max(least, (rows + wanted - 1) / wanted);
  cut.parts = (rows + cut.rows_of_block - 1) / cut.rows_of_block;
  return cut;
}

template <typename T, Job kJob, bool kWhole>
__global__ void __launch_bounds__(kThreads)
    sum_rows(const __grid_constant__ ColumnSum arguments, const Draw draw, int lanes,
             int64_t rows_of_block) {
  static_assert(kJob == Job::kPlain || kWhole, "groups of random words lie in one row");
  const int64_t columns = arguments.columns;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int place = static_cast<int>(threadIdx.x) / lanes, places = kThreads / lanes;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * lanes + lane) * kGroup;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * rows_of_block;
  const int64_t end = min(begin + rows_of_block, arguments.rows);
  const T* matrix = static_cast<const T*>(arguments.x[blockIdx.z]);
  constexpr bool kReadsOther = kJob != Job::kPlain && kJob != Job::kMultiply;
  const uint64_t seed = kJob == Job::kMultiply || kJob == Job::kGeluGradient ? seed_of(draw) : 0;
  Pack<T> bias;
  if constexpr (kJob == Job::kGeluGradient) {
    bias = load_columns<T, kWhole>(static_cast<const T*>(arguments.bias), column, columns);
  }
  float sum[kGroup] = {}, weight[kGroup] = {};
  if constexpr (kJob == Job::kWeightedGradient) {
#pragma unroll
    for (int e = 0; e < kGroup; ++e)
      weight[e] = column + e < columns ? arguments.weight[column + e] : 0.f;
  }
  for (int64_t first = begin + place; first < end; first += int64_t{kBatch} * places) {
    Pack<T> x[kBatch], other[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int64_t row = first + int64_t{b} * places, width = row < end ? columns : 0;
      x[b] = load_columns<T, kWhole>(matrix + row * columns, column, width);
      if constexpr (kReadsOther) {
        other[b] = load_columns<T, kWhole>(static_cast<const T*>(arguments.other) + row * columns,
                                           column, width);
      }
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int64_t row = first + int64_t{b} * places;
      if constexpr (kJob != Job::kPlain) {
        if (row >= end || column >= columns) continue;
        const int64_t at = row * columns + column;
        const Factors factors = factors_of(draw, seed, at / kGroup);
        Pack<T> out;
#pragma unroll
        for (int e = 0; e < kGroup; ++e) {
          float value = as_float(x[b].value[e]) * factors.value[e];
          if constexpr (kJob == Job::kReluGradient) {
            value = as_float(other[b].value[e]) > 0 ? value : 0;
          }
          if constexpr (kJob == Job::kGeluGradient) {
            value *= gelu_slope<T>(as_float(other[b].value[e]) + as_float(bias.value[e]));
          }
          const float summed =
              kJob == Job::kWeightedGradient ? value * as_float(other[b].value[e]) : value;
          if constexpr (kJob == Job::kWeightedGradient) value *= weight[e];
          out.value[e] = from_float<T>(value);
          sum[e] += summed;
        }
        *reinterpret_cast<Pack<T>*>(static_cast<T*>(arguments.out) + at) = out;
      } else {
#pragma unroll
        for (int e = 0; e < kGroup; ++e) sum[e] += as_float(x[b].value[e]);
      }
    }
  }
  __shared__ float4 of_places[kThreads * kGroup / 4];  // [places, lanes * kGroup]
  of_places[2 * threadIdx.x] = make_float4(sum[0], sum[1], sum[2], sum[3]);
  of_places[2 * threadIdx.x + 1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
  __syncthreads();
  const float* shared = reinterpret_cast<const float*>(of_places);
  const int width = lanes * kGroup;
  const int64_t own = static_cast<int64_t>(blockIdx.y) * width + threadIdx.x;
  if (static_cast<int>(threadIdx.x) < width && own < columns) {
    float total = 0;
    for (int p = 0; p < places; ++p) total += shared[p * width + threadIdx.x];
    const int64_t row = static_cast<int64_t>(blockIdx.x) * gridDim.z + blockIdx.z;
    arguments.partials[row * columns + own] = total;
  }
}

template <Job kJob>
cudaError_t run(const Draw& draw, const ColumnSum& arguments, bool whole, cudaStream_t on) {
  const Cut cut = cut_of(arguments.rows, arguments.columns);
  if (cut.parts > 0 && arguments.columns > 0) {
    const dim3 blocks(static_cast<unsigned>(cut.parts), static_cast<unsigned>(cut.tiles),
                      static_cast<unsigned>(arguments.matrices));
    with_element(arguments.element, [&](auto element) {
      using T = decltype(element);
      if constexpr (kJob == Job::kPlain) {
        if (!whole) {
          sum_rows<T, kJob, false>
              <<<blocks, kThreads, 0, on>>>(arguments, draw, cut.lanes, cut.rows_of_block);
          return;
        }
      }
      sum_rows<T, kJob, true>
          <<<blocks, kThreads, 0, on>>>(arguments, draw, cut.lanes, cut.rows_of_block);
    });
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  }
  PartialSums parts{.partials = arguments.partials,
                    .parts = cut.parts,
                    .sums = arguments.matrices,
                    .width = arguments.columns,
                    .element = arguments.sum_element};
  std::copy_n(arguments.sum, kMostSums, parts.out);
  return add_partials(parts, on);
}

}  // namespace

int64_t column_sum_parts(int64_t rows, int64_t columns) { return cut_of(rows, columns).parts; }

bool sums_in_passing(const ColumnSum& arguments) {
  const auto aligned = [](const void* x) { return is_aligned(x); };
  return arguments.columns % kGroup == 0 && std::ranges::all_of(arguments.x, aligned) &&
         is_aligned(arguments.other) && is_aligned(arguments.bias) && is_aligned(arguments.out);
}

cudaError_t column_sum(const ColumnSum& arguments, cudaStream_t on) {
  return run<Job::kPlain>(without_mask(0), arguments, sums_in_passing(arguments), on);
}

cudaError_t column_sum_of_multiply(const DropoutStream& stream, const ColumnSum& arguments,
                                   cudaStream_t on) {
  return run<Job::kMultiply>(draw_of(stream), arguments, true, on);
}

cudaError_t column_sum_of_gelu_gradient(const DropoutStream& stream, const ColumnSum& arguments,
                                        cudaStream_t on) {
  return run<Job::kGeluGradient>(draw_of(stream), arguments, true, on);
}

cudaError_t column_sum_of_relu_gradient(double probability, const ColumnSum& arguments,
                                        cudaStream_t on) {
  return run<Job::kReluGradient>(without_mask(probability), arguments, true, on);
}

cudaError_t column_sum_of_weighted_gradient(const ColumnSum& arguments, cudaStream_t on) {
  return run<Job::kWeightedGradient>(without_mask(0), arguments, true, on);
}

}  // namespace fmmformer::cuda
