// SPDX-License-Identifier: Apache-2.0
// Tensor-core products of one warp, for two kinds of arithmetic behind one interface.
//
//   Bf16    operands rounded to bf16, sums in fp32: one m16n8k16 a step.
//   Tf32x3  operands split into two tf32 numbers, sums in fp32: about fp32's own precision, for
//   fp32 and fp16 tensors.
//
// A step is C[16, 8] += A[16, 16] B[16, 8]. Lane (g = lane / 4, t = lane % 4) holds of
//   C  four numbers: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
//   A  eight, as [half][row][p]: (g + 8 row, 8 half + 2t + p)
//   B  four, as [half][p]: (8 half + 2t + p, g)
// Tf32 steps have k = 8 and other places for k; since A and B are permuted alike, the sums are the
// same, and two neighbouring C tiles are an A operand in both kinds without any exchange between
// lanes.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace fmmformer::cuda {

constexpr int kWarpSize = 32;
constexpr float kLog2E = 1.4426950408889634f;

__device__ inline int lane_id() { return threadIdx.x % kWarpSize; }

struct Bf16 {
  using Elem = __nv_bfloat16;
  static constexpr int kPad =
      8;  // of a row in shared memory: eight rows then lie in different banks
  struct A {
    uint32_t r[4];
  };
  struct B {
    uint32_t r[2];
  };

  /// 2^x in one instruction; what would be subnormal becomes 0.
  static __device__ __forceinline__ float exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  static __device__ __forceinline__ float exp(float x) { return exp2(kLog2E * x); }

  static __device__ uint32_t pack(float low, float high) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&both);
  }
  static __device__ void unpack(uint32_t both, float& low, float& high) {
    low = __uint_as_float(both << 16);
    high = __uint_as_float(both & 0xffff0000u);
  }

  // Tiles in shared memory; `stride` in elements. Transposed: the tile is stored as [k][row].
  static __device__ A load_a(const Elem* tile, int stride) {
    const int lane = lane_id();
    A a;
    ldmatrix4(a.r, tile + lane % 16 * stride + lane / 16 * 8);
    return a;
  }
  static __device__ A load_a_transposed(const Elem* tile, int stride) {
    const int lane = lane_id();
    A a;
    ldmatrix4_transposed(a.r, tile + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8);
    return a;
  }
  // Two neighbouring B tiles, n = 0..7 and 8..15, stored as [n][k] or, transposed, as [k][n].
  static __device__ void load_b(B (&b)[2], const Elem* tile, int stride) {
    const int lane = lane_id();
    uint32_t r[4];
    ldmatrix4(r, tile + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8);
    b[0] = {{r[0], r[1]}}, b[1] = {{r[2], r[3]}};
  }
  static __device__ void load_b_transposed(B (&b)[2], const Elem* tile, int stride) {
    const int lane = lane_id();
    uint32_t r[4];
    ldmatrix4_transposed(r, tile + lane % 16 * stride + lane / 16 * 8);
    b[0] = {{r[0], r[1]}}, b[1] = {{r[2], r[3]}};
  }
  static __device__ B load_b_transposed(const Elem* tile, int stride) {
    uint32_t r[2];
    ldmatrix2_transposed(r, tile + lane_id() % 16 * stride);
    return {{r[0], r[1]}};
  }

  static __device__ A make_a(const float (&v)[8]) {
    return {{pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7])}};
  }
  static __device__ void values(const A& a, float (&v)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) unpack(a.r[i], v[2 * i], v[2 * i + 1]);
  }
  /// B whose columns are all equal: v[half * 2 + p].
  static __device__ B make_b(const float (&v)[4]) { return {{pack(v[0], v[1]), pack(v[2], v[3])}}; }

  static __device__ void multiply(float (&c)[4], const A& a, const B& b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
  }
  /// c = A B, without a register to clear first.
  static __device__ void begin(float (&c)[4], const A& a, const B& b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%10,%10,%10,%10};\n"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]), "f"(0.f));
  }
  /// c += A v with v in nearly full precision: what bf16 rounds away goes into a second step.
  static __device__ void multiply_vector(float (&c)[4], const A& a, const float (&v)[4]) {
    const B high = make_b(v);
    float rounded[4], rest[4];
    unpack(high.r[0], rounded[0], rounded[1]), unpack(high.r[1], rounded[2], rounded[3]);
#pragma unroll
    for (int i = 0; i < 4; ++i) rest[i] = v[i] - rounded[i];
    multiply(c, a, high);
    multiply(c, a, make_b(rest));
  }
  static __device__ void store_pair(Elem* to, float low, float high) {
    *reinterpret_cast<uint32_t*>(to) = pack(low, high);
  }
  /// Eight neighbouring elements of a row.
  static __device__ void load_row(float (&x)[8], const Elem* from) {
    const uint4 all = *reinterpret_cast<const uint4*>(from);
    unpack(all.x, x[0], x[1]), unpack(all.y, x[2], x[3]), unpack(all.z, x[4], x[5]),
        unpack(all.w, x[6], x[7]);
  }
  static __device__ void store_row(Elem* to, const float (&x)[8]) {
    *reinterpret_cast<uint4*>(to) =
        make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7]));
  }
  /// A number as the sum of two elements, as far as they can tell it.
  static __device__ void split(float x, float& high, float& low) {
    high = __bfloat162float(__float2bfloat16(x));
    low = x - high;
  }

  // Four tiles of 8 x 8: lane 8 i + j says where row j of tile i is.
  static __device__ void ldmatrix4(uint32_t (&r)[4], const Elem* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p))
                 : "memory");
  }
  static __device__ void ldmatrix4_transposed(uint32_t (&r)[4], const Elem* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p))
                 : "memory");
  }

 private:
  static __device__ uint32_t shared_address(const Elem* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
  }
  static __device__ void ldmatrix2_transposed(uint32_t (&r)[2], const Elem* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];\n"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(p))
                 : "memory");
  }
};

/// C[16, 8] += A[16, 8] B[8, 8] of tf32 numbers, the lane's parts in the order of the instruction.
__device__ __forceinline__ void multiply_tf32(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                              uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

struct Tf32x3 {
  using Elem = float;
  static constexpr int kPad = 8;
  struct A {
    uint32_t high[8], low[8];
  };
  struct B {
    uint32_t high[4], low[4];
  };

  static __device__ __forceinline__ float exp2(float x) { return exp2f(x); }
  static __device__ __forceinline__ float exp(float x) { return expf(x); }

  static __device__ A load_a(const Elem* tile, int stride) {
    float v[8];
    const float* at = tile + group() * stride + 2 * place();
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // i = half * 2 + row
      const float2 pair = *reinterpret_cast<const float2*>(at + i % 2 * 8 * stride + i / 2 * 8);
      v[2 * i] = pair.x, v[2 * i + 1] = pair.y;
    }
    return make_a(v);
  }
  static __device__ A load_a_transposed(const Elem* tile, int stride) {
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; ++i)
      v[i] = tile[(i / 4 * 8 + 2 * place() + i % 2) * stride + group() + i / 2 % 2 * 8];
    return make_a(v);
  }
  static __device__ void load_b(B (&b)[2], const Elem* tile, int stride) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float* at = tile + (n * 8 + group()) * stride + 2 * place();
      const float2 first = *reinterpret_cast<const float2*>(at),
                   second = *reinterpret_cast<const float2*>(at + 8);
      b[n] = make_b({first.x, first.y, second.x, second.y});
    }
  }
  static __device__ B load_b_transposed(const Elem* tile, int stride) {
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = tile[(i / 2 * 8 + 2 * place() + i % 2) * stride + group()];
    return make_b(v);
  }
  static __device__ void load_b_transposed(B (&b)[2], const Elem* tile, int stride) {
    b[0] = load_b_transposed(tile, stride), b[1] = load_b_transposed(tile + 8, stride);
  }

  static __device__ A make_a(const float (&v)[8]) {
    A a;
#pragma unroll
    for (int i = 0; i < 8; ++i) split_bits(v[i], a.high[i], a.low[i]);
    return a;
  }
  static __device__ void values(const A& a, float (&v)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = __uint_as_float(a.high[i]) + __uint_as_float(a.low[i]);
  }
  static __device__ B make_b(const float (&v)[4]) {
    B b;
#pragma unroll
    for (int i = 0; i < 4; ++i) split_bits(v[i], b.high[i], b.low[i]);
    return b;
  }

  /// Joins c by an addition that rounds to nearest. Tensor cores cut what does not fit, always
  /// downwards: in a state that grows over a whole sequence that adds up.
  static __device__ void multiply(float (&c)[4], const A& a, const B& b) {
    float sum[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      step(sum, a.low + 4 * half, b.high + 2 * half);
      step(sum, a.high + 4 * half, b.low + 2 * half);
    }
    step(sum, a.high, b.high), step(sum, a.high + 4, b.high + 2);
#pragma unroll
    for (int i = 0; i < 4; ++i) c[i] += sum[i];
  }
  static __device__ void multiply_vector(float (&c)[4], const A& a, const float (&v)[4]) {
    multiply(c, a, make_b(v));
  }
  static __device__ void store_pair(Elem* to, float low, float high) {
    *reinterpret_cast<float2*>(to) = make_float2(low, high);
  }
  static __device__ void load_row(float (&x)[8], const Elem* from) {
    const float4 one = *reinterpret_cast<const float4*>(from),
                 two = *reinterpret_cast<const float4*>(from + 4);
    x[0] = one.x, x[1] = one.y, x[2] = one.z, x[3] = one.w, x[4] = two.x, x[5] = two.y,
    x[6] = two.z, x[7] = two.w;
  }
  static __device__ void store_row(Elem* to, const float (&x)[8]) {
    *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
    *reinterpret_cast<float4*>(to + 4) = make_float4(x[4], x[5], x[6], x[7]);
  }
  static __device__ void split(float x, float& high, float& low) { high = x, low = 0.f; }

 private:
  static __device__ int group() { return lane_id() / 4; }
  static __device__ int place() { return lane_id() % 4; }
  static __device__ uint32_t round(float x) {
    uint32_t r;
    asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(r) : "f"(x));
    return r;
  }
  static __device__ void split_bits(float x, uint32_t& high, uint32_t& low) {
    high = round(x);
    low = round(x - __uint_as_float(high));
  }
  static __device__ void step(float (&c)[4], const uint32_t* a, const uint32_t* b) {
    multiply_tf32(c, a[0], a[2], a[1], a[3], b[0], b[1]);
  }
};

/// Two bf16 numbers as the half-type instructions want them.
using Pair = __nv_bfloat162;
__device__ __forceinline__ Pair as_pair(uint32_t bits) { return *reinterpret_cast<Pair*>(&bits); }
__device__ __forceinline__ uint32_t as_bits(Pair pair) {
  return *reinterpret_cast<uint32_t*>(&pair);
}
/// The same number twice.
__device__ __forceinline__ Pair both(float x) { return __float2bfloat162_rn(x); }

}  // namespace fmmformer::cuda
