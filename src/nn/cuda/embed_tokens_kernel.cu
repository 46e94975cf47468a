// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>

#include "nn/cuda/dropout_draw.cuh"
#include "nn/cuda/element.cuh"
#include "nn/cuda/embedding_kernel.h"

namespace fmmformer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = int64_t{1} << 20;  // beyond, threads take several groups

__device__ __noinline__ void refuse(int64_t token, int64_t vocabulary) {
  printf("embedding: token %lld; allowed is 0 to %lld\n", static_cast<long long>(token),
         static_cast<long long>(vocabulary - 1));
  __trap();
}

/// A division of 64 bits costs more than all else in a group: where 32 are enough, they must do.
__device__ int64_t quotient(int64_t a, int64_t b) {
  if ((a | b) >> 32 != 0) return a / b;
  return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
}

template <typename T>
__device__ Pack<T> load_group(const void* matrix, int64_t row, int64_t group, int64_t groups) {
  return static_cast<const Pack<T>*>(matrix)[row * groups + group];
}

// _rn: a product and a sum that the compiler made one would have other bits than on the CPU.
template <typename T>
__global__ void __launch_bounds__(kThreads) embed_groups(Draw draw, EmbeddedTokens arguments) {
  const int64_t groups_of_row = arguments.columns / kGroup;
  const int64_t groups = arguments.tokens * groups_of_row;
  const uint64_t seed = seed_of(draw);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (int64_t group = first; group < groups; group += int64_t{gridDim.x} * kThreads) {
    const int64_t row = quotient(group, groups_of_row), column = group - row * groups_of_row;
    const int64_t token = arguments.token[row];
    if (token < 0 || token >= arguments.vocabulary) refuse(token, arguments.vocabulary);
    Pack<T> x = load_group<T>(arguments.table, token, column, groups_of_row);
    const Factors factors = factors_of(draw, seed, group);
    if (arguments.scale != 1) {
#pragma unroll
      for (int e = 0; e < kGroup; ++e) {
        x.value[e] = from_float<T>(__fmul_rn(as_float(x.value[e]), arguments.scale));
      }
    }
    if (arguments.positions) {
      const int64_t place = row - quotient(row, arguments.length) * arguments.length;
      const Pack<T> position = load_group<T>(arguments.positions, place, column, groups_of_row);
#pragma unroll
      for (int e = 0; e < kGroup; ++e) {
        x.value[e] = from_float<T>(__fadd_rn(as_float(x.value[e]), as_float(position.value[e])));
      }
    }
#pragma unroll
    for (int e = 0; e < kGroup; ++e) {
      x.value[e] = from_float<T>(__fmul_rn(as_float(x.value[e]), factors.value[e]));
    }
    static_cast<Pack<T>*>(arguments.out)[group] = x;
  }
}

}  // namespace

bool has_whole_rows(int64_t columns) { return columns > 0 && columns % kGroup == 0; }

cudaError_t embed_tokens(const DropoutStream& stream, const EmbeddedTokens& arguments,
                         cudaStream_t on) {
  const int64_t groups = arguments.tokens * (arguments.columns / kGroup);
  const int64_t blocks = std::min((groups + kThreads - 1) / kThreads, kMostBlocks);
  if (blocks == 0) return cudaSuccess;
  return with_element(arguments.element, [&](auto element) {
    using T = decltype(element);
    embed_groups<T><<<static_cast<unsigned>(blocks), kThreads, 0, on>>>(draw_of(stream), arguments);
    return cudaGetLastError();
  });
}

}  // namespace fmmformer::cuda
