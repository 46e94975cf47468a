// SPDX-License-Identifier: Apache-2.0
// The gradient of a small embedding: the sum of the rows of a matrix by the token that each belongs
// to. Libraries sort the tokens first, which costs more than the sum when there are few different
// ones, and one token may own most of the rows. No torch here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "nn/cuda/element.h"

namespace fmmformer::cuda {

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
bool has_embedding_kernel(int64_t vocabulary, int64_t columns);

/// How many parts the tokens are cut into: a function of the shape alone.
int64_t embedding_parts(int64_t tokens, int64_t vocabulary, int64_t columns);

/// The same bits in every run.
cudaError_t embedding_gradient(const EmbeddingGradient& arguments, cudaStream_t on);

}  // namespace fmmformer::cuda
