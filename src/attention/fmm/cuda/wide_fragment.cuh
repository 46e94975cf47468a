// SPDX-License-Identifier: Apache-2.0
// Blocks of 16 x 16 numbers as operands with fp32's precision: what fragment.cuh is for bf16.
//
// A WideFragment holds its numbers as they are, in a Block's own places: a block is an operand
// without any work. Products are again block += a b^T. Each takes three on tensor cores in tf32,
//
//   a b = a_low b_high + a_high b_low + a_high b_high,     x_high + x_low = x,
//
// with eleven digits in either part: errors are those of fp32 itself. Splitting is two
// instructions; a product ignores what x_low has beyond tf32.
#pragma once

#include "attention/fmm/cuda/fragment.cuh"

namespace fmmformer::cuda {

struct WideFragment {
  Block x;
};

/// x rounded to tf32, in fp32.
__device__ __forceinline__ float high_part(float x) {
#if __CUDA_ARCH__ >= 900
  uint32_t high;
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(high) : "f"(x));
  return __uint_as_float(high);
#else  // NaN may become a number here; it stays in the low part
  return __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u);
#endif
}

/// Half `n` of the columns as the left operand of a product, or of its rows 8 `half`.. as the right
/// one. The order of columns is (0, 2, 4, 6, 1, 3, 5, 7) on both sides.
struct LeftPart {
  uint32_t r[4];
};
struct RightPart {
  uint32_t r[2];
};
__device__ __forceinline__ void multiply(float (&c)[4], const LeftPart& a, const RightPart& b) {
  multiply_tf32(c, a.r[0], a.r[1], a.r[2], a.r[3], b.r[0], b.r[1]);
}
template <bool kLow>
__device__ __forceinline__ uint32_t part_of(float x) {
  return __float_as_uint(kLow ? x - high_part(x) : high_part(x));
}
template <bool kLow>
__device__ __forceinline__ LeftPart left_part(const WideFragment& f, int n) {
  return {{part_of<kLow>(f.x[n][0]), part_of<kLow>(f.x[n][2]), part_of<kLow>(f.x[n][1]),
           part_of<kLow>(f.x[n][3])}};
}
template <bool kLow>
__device__ __forceinline__ RightPart right_part(const WideFragment& f, int half, int n) {
  return {{part_of<kLow>(f.x[n][2 * half]), part_of<kLow>(f.x[n][2 * half + 1])}};
}

/// c += a b^T. kExact: tf32 holds all of a's digits.
template <bool kExact = false>
__device__ __forceinline__ void add_product(Block& c, const WideFragment& a,
                                            const WideFragment& b) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!kExact) multiply(c[half], left_part<true>(a, n), right_part<false>(b, half, n));
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
      multiply(c[half], left_part<false>(a, n), right_part<true>(b, half, n));
#pragma unroll
    for (int half = 0; half < 2; ++half)
      multiply(c[half], left_part<false>(a, n), right_part<false>(b, half, n));
  }
}
template <int kCount>
__device__ __forceinline__ void multiply(Block& c, const WideFragment (&a)[kCount],
                                         const WideFragment (&b)[kCount]) {
  clear(c);
#pragma unroll
  for (int s = 0; s < kCount; ++s) add_product(c, a[s], b[s]);
}

/// The transposed block, eight by eight numbers at a time: their halves are turned as bf16 numbers.
__device__ __forceinline__ WideFragment turned(const WideFragment& f) {
  WideFragment result;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t first = __float_as_uint(f.x[i / 2][i % 2 * 2]),
                   second = __float_as_uint(f.x[i / 2][i % 2 * 2 + 1]);
    const uint32_t low = turned(__byte_perm(first, second, 0x5410)),
                   high = turned(__byte_perm(first, second, 0x7632));
    float* to = result.x[i % 2] + i / 2 * 2;
    to[0] = __uint_as_float(__byte_perm(low, high, 0x5410));
    to[1] = __uint_as_float(__byte_perm(low, high, 0x7632));
  }
  return result;
}

template <bool kBefore>
__device__ __forceinline__ void cut_at_diagonal(WideFragment& f) {
  cut_at_diagonal<kBefore>(f.x);
}

}  // namespace fmmformer::cuda
