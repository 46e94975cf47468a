// SPDX-License-Identifier: Apache-2.0
// Tensor-core products of one warp in tf32, behind the interface of Tf32x3 (fmm/cuda/mma.cuh): one
// product a step instead of three. For bf16 tensors, of whose precision it keeps more than they
// have: bf16 operands would lose as much in every product as the result's own rounding does.
#pragma once

#include "attention/fmm/cuda/mma.cuh"

namespace fmmformer::cuda::fast_weight {

struct Tf32 {
  using Elem = float;
  struct A {
    uint32_t r[8];
  };
  struct B {
    uint32_t r[4];
  };

  static __device__ __forceinline__ float exp(float x) { return Bf16::exp(x); }
  /// What tiles in shared memory hold, so that loading is all there is to do with it.
  static __device__ __forceinline__ float rounded(float x) { return __uint_as_float(round(x)); }
  /// The same to a product, which ignores the bits that tf32 has not; for what nobody else reads.
  static __device__ __forceinline__ float operand(float x) { return __uint_as_float(nearest(x)); }

  static __device__ __forceinline__ A load_a(const float* tile, int stride) {
    A a;
    const float* at = tile + group() * stride + 2 * place();
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // i = half * 2 + row
      const uint2 pair = *reinterpret_cast<const uint2*>(at + i % 2 * 8 * stride + i / 2 * 8);
      a.r[2 * i] = pair.x, a.r[2 * i + 1] = pair.y;
    }
    return a;
  }
  static __device__ __forceinline__ A load_a_transposed(const float* tile, int stride) {
    A a;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      a.r[i] = __float_as_uint(
          tile[(i / 4 * 8 + 2 * place() + i % 2) * stride + group() + i / 2 % 2 * 8]);
    return a;
  }
  static __device__ __forceinline__ void load_b(B (&b)[2], const float* tile, int stride) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float* at = tile + (n * 8 + group()) * stride + 2 * place();
      const uint2 first = *reinterpret_cast<const uint2*>(at),
                  second = *reinterpret_cast<const uint2*>(at + 8);
      b[n] = {{first.x, first.y, second.x, second.y}};
    }
  }
  static __device__ __forceinline__ void load_b_transposed(B (&b)[2], const float* tile,
                                                           int stride) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        b[n].r[i] =
            __float_as_uint(tile[(i / 2 * 8 + 2 * place() + i % 2) * stride + n * 8 + group()]);
    }
  }
  // The same in the order in which ldmatrix finds channels, 4 i + place instead of 2 place + i: for
  // products of two loaded operands. They arrive in the registers where a product wants them.
  static __device__ __forceinline__ A load_rows_a(const float* tile, int stride) {
    const int matrix = lane_id() / 8;
    const float* at = tile + (lane_id() % 8 + matrix % 2 * 8) * stride + matrix / 2 * 4;
    A a;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t r[4];
      load_matrices(r, at + half * 8);
      a.r[4 * half] = r[0], a.r[4 * half + 2] = r[1];
      a.r[4 * half + 1] = r[2], a.r[4 * half + 3] = r[3];
    }
    return a;
  }
  static __device__ __forceinline__ void load_rows_b(B (&b)[2], const float* tile, int stride) {
    const float* at = tile + lane_id() % 8 * stride + lane_id() / 8 * 4;
    load_matrices(b[0].r, at);
    load_matrices(b[1].r, at + 8 * stride);
  }
  static __device__ __forceinline__ A load_columns_a(const float* tile, int stride) {
    const float* at = tile + place() * stride + group();
    A a;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      a.r[i] = __float_as_uint(at[(i / 4 * 8 + i % 2 * 4) * stride + i / 2 % 2 * 8]);
    return a;
  }
  static __device__ __forceinline__ void load_columns_b(B (&b)[2], const float* tile, int stride) {
    const float* at = tile + place() * stride + group();
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) b[n].r[i] = __float_as_uint(at[i * 4 * stride + n * 8]);
    }
  }
  static __device__ __forceinline__ A make_a(const float (&v)[8]) {
    A a;
#pragma unroll
    for (int i = 0; i < 8; ++i) a.r[i] = nearest(v[i]);
    return a;
  }
  /// The rows 8 row.. of A as the columns of B.
  static __device__ __forceinline__ B rows_as_b(const A& a, int row) {
    return {{a.r[2 * row], a.r[2 * row + 1], a.r[4 + 2 * row], a.r[5 + 2 * row]}};
  }
  static __device__ __forceinline__ void multiply(float (&c)[4], const A& a, const B& b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t *of_a = a.r + 4 * half, *of_b = b.r + 2 * half;
      multiply_tf32(c, of_a[0], of_a[2], of_a[1], of_a[3], of_b[0], of_b[1]);
    }
  }

 private:
  static __device__ int group() { return lane_id() / 4; }
  static __device__ int place() { return lane_id() % 4; }
  /// Four matrices of 8 x 4 numbers; a lane has the address of one of their 32 rows.
  static __device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const float* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
                 : "memory");
  }
  static __device__ __forceinline__ uint32_t round(float x) {
    uint32_t r;
    asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(r) : "f"(x));
    return r;
  }
  /// Two instructions instead of three. The arithmetic's own NaN, all ones, must not overflow.
  static __device__ __forceinline__ uint32_t nearest(float x) {
    return static_cast<uint32_t>(min(static_cast<int>(__float_as_uint(x)), 0x7fffefff)) + 0x1000;
  }
};

/// Tf32x3 with the functions that it lacks; it splits what it loads, so tiles hold plain numbers.
struct Split : Tf32x3 {
  static __device__ __forceinline__ float rounded(float x) { return x; }
  static __device__ __forceinline__ float operand(float x) { return x; }
  static __device__ __forceinline__ A load_rows_a(const float* tile, int stride) {
    return load_a(tile, stride);
  }
  static __device__ __forceinline__ A load_columns_a(const float* tile, int stride) {
    return load_a_transposed(tile, stride);
  }
  static __device__ __forceinline__ void load_rows_b(B (&b)[2], const float* tile, int stride) {
    load_b(b, tile, stride);
  }
  static __device__ __forceinline__ void load_columns_b(B (&b)[2], const float* tile, int stride) {
    load_b_transposed(b, tile, stride);
  }
  static __device__ __forceinline__ B rows_as_b(const A& a, int row) {
    B b;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      b.high[i] = a.high[i / 2 * 4 + 2 * row + i % 2],
      b.low[i] = a.low[i / 2 * 4 + 2 * row + i % 2];
    }
    return b;
  }
};

}  // namespace fmmformer::cuda::fast_weight
