// SPDX-License-Identifier: Apache-2.0
// Which elements of a group are dropped.
#pragma once

#include <cstdint>

#include "attention/philox.h"
#include "nn/cuda/dropout_kernel.h"
#include "nn/cuda/element.cuh"

namespace fmmformer::cuda {

struct Draw {
  const int64_t* seed;  // null: nothing is dropped
  uint32_t site;
  uint32_t threshold;
  float kept;
};

/// Everything is kept, and divided by 1 - p all the same.
inline Draw without_mask(double probability) {
  return {.seed = nullptr,
          .site = 0,
          .threshold = 0,
          .kept = static_cast<float>(1.0 / (1.0 - probability))};
}

inline Draw draw_of(const DropoutStream& stream) {
  Draw draw = without_mask(stream.probability);
  if (stream.probability == 0) return draw;
  draw.seed = stream.seed;
  draw.site = stream.site;
  draw.threshold = dropout_threshold(stream.probability);
  return draw;
}

__device__ inline uint64_t seed_of(const Draw& draw) {
  return draw.seed ? static_cast<uint64_t>(*draw.seed) : 0;
}

/// What x is multiplied by, for the elements of a group.
struct Factors {
  float value[kGroup];
};

__device__ inline Factors factors_of(const Draw& draw, uint64_t seed, int64_t group) {
  Factors factors;
  if (!draw.seed) {
#pragma unroll
    for (int e = 0; e < kGroup; ++e) factors.value[e] = draw.kept;
    return factors;
  }
#pragma unroll
  for (int half = 0; half < kGroup / 4; ++half) {
    const auto block = static_cast<uint64_t>(group) * (kGroup / 4) + half;
    const PhiloxBlock words = philox_block(
        {{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), draw.site, 1u}},
        static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      factors.value[4 * half + e] = words.word[e] < draw.threshold ? 0 : draw.kept;
    }
  }
  return factors;
}

}  // namespace fmmformer::cuda
