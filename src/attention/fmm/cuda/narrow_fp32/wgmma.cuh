// SPDX-License-Identifier: Apache-2.0
// Products of a warpgroup on pairs of fp16 numbers.
//
// A step is C[64, N] += A[64, 16] B[16, N], three products of fp16. A warp has sixteen rows of A, a
// Left, and of C, Blocks of sixteen columns each. B lies in shared memory: eight rows of 64 bytes
// of high parts, then those of low parts, pieces of sixteen bytes permuted by the row. Rows serve
// both ways: as columns of B, the sum running over channels; or turned, the sum running over rows.
#pragma once

#include "attention/fmm/cuda/chunks_fp32/split.cuh"
#include "attention/fmm/cuda/warpgroup.cuh"

namespace fmmformer::cuda::narrow_fp32 {

/// Where an operand begins, by its address in shared memory.
__device__ __forceinline__ uint64_t rows_operand(uint32_t address) {
  return uint64_t(address >> 4 & 0x3fffu) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 |
         uint64_t(2) << 62;
}
// From there, as operands count: to the low parts; to channels 16 to 31; to the next sixteen rows.
constexpr uint64_t kToLow = 512 >> 4, kToBlock = 32 >> 4, kToTile = 2048 >> 4;

#define FMM_BLOCK(how, c)                                                                         \
  how((c)[0][0]), how((c)[0][1]), how((c)[0][2]), how((c)[0][3]), how((c)[1][0]), how((c)[1][1]), \
      how((c)[1][2]), how((c)[1][3])
#define FMM_32(how, c) FMM_BLOCK(how, (c)[0]), FMM_BLOCK(how, (c)[1])
#define FMM_64(how, c) FMM_32(how, c), FMM_32(how, (c) + 2)
#define FMM_PREDICATE(add) "{\n.reg .pred p;\nsetp.ne.b32 p, " #add ", 0;\n"
#define FMM_STEP_32                                                                            \
  "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11," \
  "%12,%13,%14,%15}, "
#define FMM_STEP_64                                                                            \
  "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11," \
  "%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
#define FMM_PART(a) "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3])

/// Begin a product of parts: c += a b or, unless kAdd, c = a b.
template <bool kAdd, bool kTurned>
__device__ __forceinline__ void begin_part(Block (&c)[4], const uint32_t (&a)[4], uint64_t b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kAdd) {
    asm volatile(FMM_PREDICATE(1) FMM_STEP_64 "{%32,%33,%34,%35}, %36, p, 1, 1, %37;\n}\n"
                 : FMM_64("+f", c)
                 : FMM_PART(a), "l"(b), "n"(int(kTurned)));
  } else {
    asm volatile(FMM_PREDICATE(0) FMM_STEP_64 "{%32,%33,%34,%35}, %36, p, 1, 1, %37;\n}\n"
                 : FMM_64("=f", c)
                 : FMM_PART(a), "l"(b), "n"(int(kTurned)));
  }
#endif
}
template <bool kAdd, bool kTurned>
__device__ __forceinline__ void begin_part(Block (&c)[2], const uint32_t (&a)[4], uint64_t b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kAdd) {
    asm volatile(FMM_PREDICATE(1) FMM_STEP_32 "{%16,%17,%18,%19}, %20, p, 1, 1, %21;\n}\n"
                 : FMM_32("+f", c)
                 : FMM_PART(a), "l"(b), "n"(int(kTurned)));
  } else {
    asm volatile(FMM_PREDICATE(0) FMM_STEP_32 "{%16,%17,%18,%19}, %20, p, 1, 1, %21;\n}\n"
                 : FMM_32("=f", c)
                 : FMM_PART(a), "l"(b), "n"(int(kTurned)));
  }
#endif
}
#undef FMM_PART
#undef FMM_STEP_64
#undef FMM_STEP_32
#undef FMM_PREDICATE
#undef FMM_64
#undef FMM_32
#undef FMM_BLOCK

/// Begin c = the sum over i of a[i] b_i or, kAdd, c += that, where b_i is i * `stride` after b; the
/// small terms first.
template <bool kTurned, bool kAdd = false, int kColumns, int kSteps>
__device__ __forceinline__ void begin_products(Block (&c)[kColumns],
                                               const chunks_fp32::Left (&a)[kSteps], uint64_t b,
                                               uint64_t stride) {
  begin_part<kAdd, kTurned>(c, a[0].low, b);
#pragma unroll
  for (int i = 1; i < kSteps; ++i) begin_part<true, kTurned>(c, a[i].low, b + i * stride);
#pragma unroll
  for (int i = 0; i < kSteps; ++i) begin_part<true, kTurned>(c, a[i].high, b + i * stride + kToLow);
#pragma unroll
  for (int i = 0; i < kSteps; ++i) begin_part<true, kTurned>(c, a[i].high, b + i * stride);
}

}  // namespace fmmformer::cuda::narrow_fp32
