// SPDX-License-Identifier: Apache-2.0
// Products of a warpgroup, as in cuda/warpgroup.cuh, for rows of 32 channels.
//
// A step is C[64, N] += A[64, 16] B[16, N]. A warp has sixteen rows of A, a Fragment, and of C,
// Blocks of sixteen columns each. B lies in shared memory in rows of 64 bytes whose pieces of
// sixteen bytes are permuted by the row, eight rows in 512 bytes. Rows serve both ways: as columns
// of B, the sum running over channels; or turned, the sum running over rows.
#pragma once

#include "attention/fmm/cuda/warpgroup.cuh"

namespace fmmformer::cuda::narrow {

/// Where an operand begins, by its address in shared memory. In units of sixteen bytes, so that
/// steps are added to it. The address is the last to be added: what does not change is a constant.
__device__ __forceinline__ uint64_t rows_operand(uint32_t address) {
  constexpr uint64_t kRowsOf64Bytes =
      uint64_t(1) << 16 | uint64_t(512 >> 4) << 32 | uint64_t(2) << 62;
  return kRowsOf64Bytes + (address >> 4);
}
/// Of a turned operand: columns after the 32nd are those of the rows that begin at `other`, which
/// comes later in shared memory.
__device__ __forceinline__ uint64_t with_columns_of(uint64_t operand, uint32_t address,
                                                    uint32_t other) {
  // The field is 1 where there is no such column.
  return operand + ((uint64_t((other - address) >> 4) - 1) << 16);
}
constexpr int kChunkStep = 64 * 64 >> 4;  // to the operand of the next 64 rows
/// The left operand of a step, [64][16] in blocks of eight rows and columns, 128 bytes each and two
/// of them side by side; from eight rows to the next `to_next_rows` bytes, 0 where all are the
/// same.
__device__ __forceinline__ uint64_t left_operand(uint32_t address, uint32_t to_next_rows) {
  return uint64_t(address >> 4) | uint64_t(128 >> 4) << 16 | uint64_t(to_next_rows >> 4) << 32;
}

#define FMM_BLOCK(how, c)                                                                         \
  how((c)[0][0]), how((c)[0][1]), how((c)[0][2]), how((c)[0][3]), how((c)[1][0]), how((c)[1][1]), \
      how((c)[1][2]), how((c)[1][3])
#define FMM_32(how, c) FMM_BLOCK(how, (c)[0]), FMM_BLOCK(how, (c)[1])
#define FMM_64(how, c) FMM_32(how, c), FMM_32(how, (c) + 2)
#define FMM_PREDICATE(add) "{\n.reg .pred p;\nsetp.ne.b32 p, " #add ", 0;\n"
#define FMM_STEP_32                                                                              \
  "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11," \
  "%12,%13,%14,%15}, "
#define FMM_STEP_40                                                                              \
  "wgmma.mma_async.sync.aligned.m64n40k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11," \
  "%12,%13,%14,%15,%16,%17,%18,%19}, "
#define FMM_STEP_64                                                                              \
  "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11," \
  "%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
#define FMM_FRAGMENT(a) "r"((a).r[0]), "r"((a).r[1]), "r"((a).r[2]), "r"((a).r[3])

/// Begin a step: c += a b or, unless kAdd, c = a b.
template <bool kAdd>
__device__ __forceinline__ void begin_64(Block (&c)[4], const Fragment& a, uint64_t b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kAdd) {
    asm volatile(FMM_PREDICATE(1) FMM_STEP_64 "{%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}\n"
                 : FMM_64("+f", c)
                 : FMM_FRAGMENT(a), "l"(b));
  } else {
    asm volatile(FMM_PREDICATE(0) FMM_STEP_64 "{%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}\n"
                 : FMM_64("=f", c)
                 : FMM_FRAGMENT(a), "l"(b));
  }
#endif
}
template <bool kAdd, bool kTurned>
__device__ __forceinline__ void begin_32(Block (&c)[2], const Fragment& a, uint64_t b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kAdd) {
    asm volatile(FMM_PREDICATE(1) FMM_STEP_32 "{%16,%17,%18,%19}, %20, p, 1, 1, %21;\n}\n"
                 : FMM_32("+f", c)
                 : FMM_FRAGMENT(a), "l"(b), "n"(int(kTurned)));
  } else {
    asm volatile(FMM_PREDICATE(0) FMM_STEP_32 "{%16,%17,%18,%19}, %20, p, 1, 1, %21;\n}\n"
                 : FMM_32("=f", c)
                 : FMM_FRAGMENT(a), "l"(b), "n"(int(kTurned)));
  }
#endif
}
/// With eight columns more; turned, those are of other rows: see with_columns_of.
template <bool kAdd, bool kTurned>
__device__ __forceinline__ void begin_40(Block (&c)[2], float (&more)[4], const Fragment& a,
                                         uint64_t b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kAdd) {
    asm volatile(FMM_PREDICATE(1) FMM_STEP_40 "{%20,%21,%22,%23}, %24, p, 1, 1, %25;\n}\n"
                 : FMM_32("+f", c), "+f"(more[0]), "+f"(more[1]), "+f"(more[2]), "+f"(more[3])
                 : FMM_FRAGMENT(a), "l"(b), "n"(int(kTurned)));
  } else {
    asm volatile(FMM_PREDICATE(0) FMM_STEP_40 "{%20,%21,%22,%23}, %24, p, 1, 1, %25;\n}\n"
                 : FMM_32("=f", c), "=f"(more[0]), "=f"(more[1]), "=f"(more[2]), "=f"(more[3])
                 : FMM_FRAGMENT(a), "l"(b), "n"(int(kTurned)));
  }
#endif
}
/// The same with a left operand in shared memory (left_operand) and turned rows.
template <bool kAdd>
__device__ __forceinline__ void begin_shared_32(Block (&c)[2], uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kAdd) {
    asm volatile(FMM_PREDICATE(1) FMM_STEP_32 "%16, %17, p, 1, 1, 0, 1;\n}\n"
                 : FMM_32("+f", c)
                 : "l"(a), "l"(b));
  } else {
    asm volatile(FMM_PREDICATE(0) FMM_STEP_32 "%16, %17, p, 1, 1, 0, 1;\n}\n"
                 : FMM_32("=f", c)
                 : "l"(a), "l"(b));
  }
#endif
}
/// c += a^T b, where both operands are turned rows in shared memory; a has 64 columns, those after
/// the 32nd by with_columns_of.
__device__ __forceinline__ void begin_turned_32(Block (&c)[2], uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(FMM_PREDICATE(1) FMM_STEP_32 "%16, %17, p, 1, 1, 1, 1;\n}\n"
               : FMM_32("+f", c)
               : "l"(a), "l"(b));
#endif
}
/// The same with eight columns more.
__device__ __forceinline__ void begin_turned_40(Block (&c)[2], float (&more)[4], uint64_t a,
                                                uint64_t b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(FMM_PREDICATE(1) FMM_STEP_40 "%20, %21, p, 1, 1, 1, 1;\n}\n"
               : FMM_32("+f", c), "+f"(more[0]), "+f"(more[1]), "+f"(more[2]), "+f"(more[3])
               : "l"(a), "l"(b));
#endif
}
#undef FMM_FRAGMENT
#undef FMM_STEP_64
#undef FMM_STEP_40
#undef FMM_STEP_32
#undef FMM_PREDICATE
#undef FMM_64
#undef FMM_32
#undef FMM_BLOCK

}  // namespace fmmformer::cuda::narrow
