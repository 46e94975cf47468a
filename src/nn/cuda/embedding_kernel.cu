// SPDX-License-Identifier: Apache-2.0
// As a product on tensor cores: (one-hot rows of the tokens)^T times the gradient. Factors of 0 and
// 1 are exact in bf16 and sums are fp32, so this is the plain sum. A one-hot fragment is made in
// registers by comparing; a block of sixteen words that none of sixteen tokens is among is skipped.
#include "nn/cuda/embedding_kernel.h"

#include <algorithm>

#include "attention/fmm/cuda/mma.cuh"
#include "nn/cuda/partial_sums.h"

namespace fmmformer::cuda {
namespace {

using Elem = Bf16::Elem;

constexpr int kWarps = 8, kThreads = kWarps * kWarpSize;
constexpr int kBlock = 16;                        // words and tokens of a product
constexpr int kWordBlocks = 4;                    // of a warp
constexpr int kWarpWords = kWordBlocks * kBlock;  // 64
constexpr int kWords = kWarps * kWarpWords;       // of a thread block
constexpr int kColumns = 64;                      // of a thread block
constexpr int kTokens = 64;                       // that lie in shared memory at a time
constexpr int kStride = kColumns + Bf16::kPad;    // of their rows
constexpr int kPiece = 8,
              kPieces = kTokens * kColumns / kPiece / kThreads;  // 16 bytes, of a thread
constexpr int64_t kMostNumbers = int64_t{1} << 19;               // of the table
constexpr int64_t kMostPartials = int64_t{1} << 24;              // numbers: 64 MiB
constexpr int64_t kMostParts = 132;                              // multiprocessors of an H100

/// What a thread brings of the next tokens, while the last ones are in use.
struct Incoming {
  uint4 piece[kPieces];
  int word;  // of token threadIdx.x
};

__device__ Incoming load(const EmbeddingGradient& arguments, int64_t first, int64_t end,
                         int first_column) {
  Incoming next;
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    const int index = p * kThreads + static_cast<int>(threadIdx.x);
    const int64_t token = first + index / (kColumns / kPiece);
    const int64_t column = first_column + index % (kColumns / kPiece) * kPiece;
    const auto* from =
        static_cast<const Elem*>(arguments.grad) + token * arguments.columns + column;
    next.piece[p] = token < end && column < arguments.columns
                        ? *reinterpret_cast<const uint4*>(from)
                        : make_uint4(0, 0, 0, 0);
  }
  const int64_t token = first + threadIdx.x;
  next.word = threadIdx.x < kTokens && token < end ? static_cast<int>(arguments.token[token]) : -1;
  return next;
}

__device__ void store(const Incoming& next, Elem* rows, int* words) {
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    const int index = p * kThreads + static_cast<int>(threadIdx.x);
    Elem* to = rows + index / (kColumns / kPiece) * kStride + index % (kColumns / kPiece) * kPiece;
    *reinterpret_cast<uint4*>(to) = next.piece[p];
  }
  if (threadIdx.x < kTokens) words[threadIdx.x] = next.word;
}

/// Words as rows, tokens as columns: 1 where the token is the word. `own`: the words of the lane's
/// columns 2t, 2t + 1, 8 + 2t, 8 + 2t + 1.
__device__ Bf16::A one_hot(int first_word, const int (&own)[4]) {
  Bf16::A a;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int word = first_word + lane_id() / 4 + r % 2 * 8, columns = r / 2 * 2;
    a.r[r] = (own[columns] == word ? 0x3f80u : 0u) | (own[columns + 1] == word ? 0x3f800000u : 0u);
  }
  return a;
}

using Sums = float[kWordBlocks][kColumns / 8][4];

/// Adds sixteen tokens to the warp's words.
__device__ void add_tokens(Sums& sums, const Elem* rows, const int* words, int first_word) {
  const int word = words[lane_id() % kBlock] - first_word;
  const uint32_t wanted =
      __reduce_or_sync(~0u, word >= 0 && word < kWarpWords ? 1u << word / kBlock : 0u);
  if (wanted == 0) return;
  Bf16::B grad[kColumns / 8];
#pragma unroll
  for (int n = 0; n < kColumns / 8; n += 2) {
    Bf16::B pair[2];
    Bf16::load_b_transposed(pair, rows + n * 8, kStride);
    grad[n] = pair[0], grad[n + 1] = pair[1];
  }
  const int t = lane_id() % 4 * 2;
  const int own[4] = {words[t], words[t + 1], words[8 + t], words[9 + t]};
#pragma unroll
  for (int block = 0; block < kWordBlocks; ++block) {
    if (!(wanted >> block & 1)) continue;
    const Bf16::A a = one_hot(first_word + block * kBlock, own);
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) Bf16::multiply(sums[block][n], a, grad[n]);
  }
}

__global__ void __launch_bounds__(kThreads)
    sum_by_word(const __grid_constant__ EmbeddingGradient arguments, int64_t tokens_of_block) {
  __shared__ __align__(16) Elem rows[kTokens * kStride];
  __shared__ int words[kTokens];
  const int first_column = static_cast<int>(blockIdx.z) * kColumns;
  const int first_word = static_cast<int>(blockIdx.y) * kWords +
                         static_cast<int>(threadIdx.x) / kWarpSize * kWarpWords;
  const int64_t begin = blockIdx.x * tokens_of_block;
  const int64_t end = min(begin + tokens_of_block, arguments.tokens);
  Sums sums = {};
  Incoming next = load(arguments, begin, end, first_column);
  for (int64_t first = begin; first < end; first += kTokens) {
    __syncthreads();  // the last ones have been read
    store(next, rows, words);
    __syncthreads();
    next = load(arguments, first + kTokens, end, first_column);
#pragma unroll 1
    for (int token = 0; token < kTokens; token += kBlock) {
      add_tokens(sums, rows + token * kStride, words + token, first_word);
    }
  }
  float* part = arguments.partials +
                static_cast<int64_t>(blockIdx.x) * arguments.vocabulary * arguments.columns;
#pragma unroll
  for (int block = 0; block < kWordBlocks; ++block) {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const int64_t word = first_word + block * kBlock + lane_id() / 4 + row * 8;
        const int64_t column = first_column + n * 8 + lane_id() % 4 * 2;
        if (word >= arguments.vocabulary || column >= arguments.columns) continue;
        *reinterpret_cast<float2*>(part + word * arguments.columns + column) =
            make_float2(sums[block][n][2 * row], sums[block][n][2 * row + 1]);
      }
    }
  }
}

}  // namespace

bool has_gradient_kernel(int64_t vocabulary, int64_t columns) {
  return columns % kPiece == 0 && columns > 0 && vocabulary * columns <= kMostNumbers;
}

int64_t embedding_parts(int64_t tokens, int64_t vocabulary, int64_t columns) {
  const int64_t room = kMostPartials / std::max<int64_t>(vocabulary * columns, 1);
  const int64_t needed = (tokens + kTokens - 1) / kTokens;
  return std::min({needed, room, kMostParts});
}

cudaError_t embedding_gradient(const EmbeddingGradient& arguments, cudaStream_t on) {
  const int64_t parts = embedding_parts(arguments.tokens, arguments.vocabulary, arguments.columns);
  if (parts > 0) {
    const int64_t each = (arguments.tokens + parts - 1) / parts;
    const dim3 blocks(static_cast<unsigned>(parts),
                      static_cast<unsigned>((arguments.vocabulary + kWords - 1) / kWords),
                      static_cast<unsigned>((arguments.columns + kColumns - 1) / kColumns));
    sum_by_word<<<blocks, kThreads, 0, on>>>(arguments, each);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  }
  return add_partials({.partials = arguments.partials,
                       .parts = parts,
                       .sums = 1,
                       .width = arguments.vocabulary * arguments.columns,
                       .element = arguments.sum_element,
                       .out = {arguments.sum}},
                      on);
}

}  // namespace fmmformer::cuda
