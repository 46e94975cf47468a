// SPDX-License-Identifier: Apache-2.0
// What a chunk's products want and give: triangles, rows times weights, fields of a result.
#pragma once

#include "attention/fmm/cuda/narrow/sequence.cuh"

namespace fmmformer::cuda::narrow {

/// body(the warp as a constant).
template <typename Body>
__device__ __forceinline__ void with_warp(int warp, const Body& body) {
  static_assert(kWarps == 4);
  if (warp < 2) {
    if (warp == 0)
      body(MapIndex<0>());
    else
      body(MapIndex<1>());
  } else {
    if (warp == 2)
      body(MapIndex<2>());
    else
      body(MapIndex<3>());
  }
}

/// Which tokens of its own tile a row sees: not those after it or, kBefore, before it.
template <bool kBefore>
struct Diagonal {
  uint32_t kept;  // of a pair of the first eight tokens and rows, and of the last

  __device__ __forceinline__ explicit Diagonal(uint32_t lane) {
    const uint32_t row = lane / 4, column = lane % 4 * 2;
    const bool low = kBefore ? column >= row : column <= row;
    const bool high = kBefore ? column + 1 >= row : column + 1 <= row;
    kept = (low ? 0xffffu : 0u) | (high ? 0xffff0000u : 0u);
    asm volatile("" : "+r"(kept));  // not made anew for every map
  }
  __device__ __forceinline__ void cut(Fragment& f) const {
    f.r[0] &= kept, f.r[3] &= kept, f.r[kBefore ? 1 : 2] = 0;
  }
};
/// Makes operands of a chunk's block of products, of the warp's rows with 64 tokens:
/// operand(the warp as a constant, t) for the tokens of a tile. What a row must not see is zero. A
/// branch for each warp costs less than to select in every register.
template <bool kBefore, typename Operand>
__device__ __forceinline__ void make_seen(Fragment (&f)[kTiles], int warp,
                                          const Diagonal<kBefore>& diagonal,
                                          const Operand& operand) {
  const auto of_warp = [&](auto number) {
    constexpr int kOwn = number.value;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (kBefore ? t < kOwn : t > kOwn)
        f[t] = {{0, 0, 0, 0}};
      else
        f[t] = operand(number, t);
    }
    diagonal.cut(f[kOwn]);
  };
  with_warp(warp, of_warp);
}
template <bool kBefore>
__device__ __forceinline__ void round_seen(Fragment (&f)[kTiles], const Block (&c)[kTiles],
                                           int warp, const Diagonal<kBefore>& diagonal) {
  make_seen(f, warp, diagonal, [&](auto, int t) { return rounded(c[t]); });
}

/// Products of pairs, in bf16.
__device__ __forceinline__ Fragment products_of(const Fragment& a, const Fragment& b) {
  Fragment f;
#pragma unroll
  for (int j = 0; j < 4; ++j) f.r[j] = as_bits(__hmul2(as_pair(a.r[j]), as_pair(b.r[j])));
  return f;
}
/// Sums over 32 columns, those of row g in [0] and of g + 8 in [2]: tensor cores add up, and every
/// lane has them.
__device__ __forceinline__ void sum_columns(float (&sums)[4], const Fragment& first,
                                            const Fragment& second) {
  Bf16::begin(sums, first, {{kOnes, kOnes}});
  Bf16::multiply(sums, second, {{kOnes, kOnes}});
}

/// Rows of v or grad_out times a field's weights.
template <typename G>
__device__ __forceinline__ void weigh(const Sequence<G>& at, Fragments& f, int field) {
  const Elem* weights = shared_at<Elem>(G::kOperands) + field * kDim + at.quad() * 2;
#pragma unroll
  for (int n = 0; n < kBlocks * 2; ++n) {
    const Pair w = *reinterpret_cast<const Pair*>(weights + n * 8);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint32_t& x = f[n / 2].r[n % 2 * 2 + r];
      x = as_bits(__hmul2(as_pair(x), w));
    }
  }
}
/// sum += rows * weight * factor of rows g and g + 8.
template <typename G>
__device__ __forceinline__ void add_field(const Sequence<G>& at, Rows& sum, const Rows& rows,
                                          const float (&factor)[2], int field) {
#pragma unroll
  for (int s = 0; s < kBlocks; ++s) {
    const float4 w = at.weights(field, s);
    const float of_channel[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int i = 0; i < 8; ++i)
      sum[s][i / 4][i % 4] +=
          of_channel[i / 4 * 2 + i % 2] * (factor[i % 4 / 2] * rows[s][i / 4][i % 4]);
  }
}

}  // namespace fmmformer::cuda::narrow
