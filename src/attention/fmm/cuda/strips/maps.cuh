// SPDX-License-Identifier: Apache-2.0
// Feature rows of sixteen queries or keys in a warp's registers.
#pragma once

#include "attention/fmm/cuda/paper_maps.cuh"
#include "attention/fmm/cuda/strips/shape.cuh"

namespace fmmformer::cuda::strips {

/// Sixteen rows of q or k, and what the maps make of them as operands. Of the rows only e is kept
/// in registers, which are scarce; x is loaded from its tile whenever it is needed.
template <typename G, Side kSide = Side::kAny>
struct Inputs {
  const Elem* tile;
  Fragment decay[G::kBlocks];

  __device__ __forceinline__ explicit Inputs(const Elem* tile) : tile(tile) {
    Fragment x[G::kBlocks];
    load<kSide>(x, tile, G::kStride);
#pragma unroll
    for (int s = 0; s < G::kBlocks; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) decay[s].r[i] = decay_of(x[s].r[i]);
    }
  }

  template <int kMap>
  __device__ __forceinline__ void features(Fragment (&f)[G::kBlocks]) const {
    Fragment x[G::kBlocks];
    load<kSide>(x, tile, G::kStride);
#pragma unroll
    for (int s = 0; s < G::kBlocks; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        f[s].r[i] = feature_pair<kMap>(x[s].r[i], decay[s].r[i]);
      }
    }
  }

  /// sum += gradient with respect to f, times f's slope.
  template <int kMap>
  __device__ __forceinline__ void add_input_gradient(Block (&sum)[G::kBlocks],
                                                     const Block (&gradient)[G::kBlocks]) const {
    Fragment x[G::kBlocks];
    load<kSide>(x, tile, G::kStride);
#pragma unroll
    for (int s = 0; s < G::kBlocks; ++s) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float low, high;
        slope_pair<kMap>(x[s].r[j], decay[s].r[j], low, high);
        float* to = sum[s][j / 2] + j % 2 * 2;
        const float* from = gradient[s][j / 2] + j % 2 * 2;
        to[0] += from[0] * low, to[1] += from[1] * high;
      }
    }
  }
};

/// Clears the rows of dead tokens: features of 0 are not 0.
template <int kCount>
__device__ __forceinline__ void keep_live(Fragment (&f)[kCount], uint32_t live) {
  if ((live & 0xffffu) == 0xffffu) return;
  const uint32_t low = live >> row_of(0) & 1 ? ~0u : 0u, high = live >> row_of(2) & 1 ? ~0u : 0u;
#pragma unroll
  for (int s = 0; s < kCount; ++s) {
    f[s].r[0] &= low, f[s].r[2] &= low, f[s].r[1] &= high, f[s].r[3] &= high;
  }
}
/// Rows g and g + 8 times a factor each, in bf16.
template <int kCount>
__device__ __forceinline__ void scale(Fragment (&f)[kCount], const float (&factor)[2]) {
#pragma unroll
  for (int s = 0; s < kCount; ++s) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      f[s].r[i] = as_bits(__hmul2(as_pair(f[s].r[i]), both(factor[i % 2])));
  }
}
template <int kCount>
__device__ __forceinline__ void turn(Fragment (&turned_f)[kCount], const Fragment (&f)[kCount]) {
#pragma unroll
  for (int s = 0; s < kCount; ++s) turned_f[s] = turned(f[s]);
}

}  // namespace fmmformer::cuda::strips
