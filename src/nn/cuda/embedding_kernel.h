// SPDX-License-Identifier: Apache-2.0
// Embeddings on the GPU. No torch here.
//
// Forward: rows of a table with positions and dropout, a group of eight columns a thread. Libraries
// give a row a thread block, which for rows of 128 bytes costs eight times the memory's time.
//
// Backward, for a small table: the sum of the rows of a matrix by the token that each belongs to.
// Libraries sort the tokens first, which costs more than the sum when there are few different ones,
// and one token may own most of the rows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "nn/cuda/dropout_kernel.h"
#include "nn/cuda/element.h"

namespace fmmformer::cuda {

/// out = (scale * table[token] + positions) f, rounded after each of the three steps: the bits of
/// three passes. f is 0 or 1 / (1 - p). All rows aligned to 16 bytes.
struct EmbeddedTokens {
  Element element = Element::kFloat;  // of table, positions and out
  int64_t tokens = 0;
  int64_t length = 1;  // token t has position t % length
  int64_t vocabulary = 0;
  int64_t columns = 0;
  const int64_t* token = nullptr;   // [tokens], each below vocabulary: another traps
  const void* table = nullptr;      // [vocabulary, columns]
  const void* positions = nullptr;  // [length, columns] or null
  float scale = 1;
  void* out = nullptr;  // [tokens, columns]
};

bool has_whole_rows(int64_t columns);  // in groups of eight

cudaError_t embed_tokens(const DropoutStream& stream, const EmbeddedTokens& arguments,
                         cudaStream_t on);

struct EmbeddingGradient {
  int64_t tokens = 0;
  int64_t vocabulary = 0;
  int64_t columns = 0;
  const int64_t* token = nullptr;  // [tokens], each below vocabulary
  const void* grad = nullptr;      // bf16 [tokens, columns], rows aligned to 16 bytes
  float* partials = nullptr;       // [embedding_parts(), vocabulary, columns] to work in
  Element sum_element = Element::kFloat;
  void* sum = nullptr;  // [vocabulary, columns]
};

/// Whether there is a kernel for it: columns in groups of eight, and a table small enough for
/// partial sums.
bool has_gradient_kernel(int64_t vocabulary, int64_t columns);

/// How many parts the tokens are cut into: a function of the shape alone.
int64_t embedding_parts(int64_t tokens, int64_t vocabulary, int64_t columns);

/// The same bits in every run.
cudaError_t embedding_gradient(const EmbeddingGradient& arguments, cudaStream_t on);

}  // namespace fmmformer::cuda
