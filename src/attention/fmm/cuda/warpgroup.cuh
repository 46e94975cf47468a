// SPDX-License-Identifier: Apache-2.0
// Products of a warpgroup, four warps: wgmma, which sm_90a alone has.
//
// A step is C[64, N] += A[64, 16] B[16, N]. A warp has sixteen rows of A, a Fragment, and of C,
// Blocks of sixteen columns each. B lies in shared memory, in tiles of sixteen rows of 64 channels,
// 128 bytes, whose pieces of sixteen bytes are permuted by the row; tiles begin at multiples of
// 1024 bytes. A tile serves both ways: its rows as columns of B, the sum running over channels; or
// turned, the sum running over its rows.
#pragma once

#include "attention/fmm/cuda/fragment.cuh"

namespace fmmformer::cuda {

/// Where an operand begins in shared memory: 128 bytes a row, permuted, eight rows in 1024 bytes.
__device__ __forceinline__ uint64_t warpgroup_operand(const void* at) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(at));
  return uint64_t(address >> 4 & 0x3fffu) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 |
         uint64_t(1) << 62;
}

/// Ordinary writes to shared memory become visible to products of a warpgroup. A barrier must
/// follow.
__device__ __forceinline__ void show_to_warpgroup() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
#endif
}
/// Before products, after ordinary work on their registers.
__device__ __forceinline__ void begin_warpgroup_products() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#endif
}
/// In two steps, between which is ordinary work on other registers: ends a run of products; waits
/// for them.
__device__ __forceinline__ void commit_warpgroup_products() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
#endif
}
__device__ __forceinline__ void await_committed_products() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
#endif
}
/// Waits for all products begun; then `arrived` lets their results be used.
__device__ __forceinline__ void await_warpgroup_products() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n" ::: "memory");
#endif
}
template <int kCount>
__device__ __forceinline__ void arrived(Block (&c)[kCount]) {
#pragma unroll
  for (int i = 0; i < 8 * kCount; ++i)
    asm volatile("" : "+f"(c[i / 8][i / 4 % 2][i % 4])::"memory");
}
template <int kMaps, int kCount>
__device__ __forceinline__ void arrived(Block (&c)[kMaps][kCount]) {
#pragma unroll
  for (int l = 0; l < kMaps; ++l) arrived(c[l]);
}

// Sums are added to ("+f") or only written ("=f"): then the compiler need not keep what was in
// their registers before.
#define FMM_BLOCK(how, c)                                                                         \
  how((c)[0][0]), how((c)[0][1]), how((c)[0][2]), how((c)[0][3]), how((c)[1][0]), how((c)[1][1]), \
      how((c)[1][2]), how((c)[1][3])
#define FMM_32(how, c) FMM_BLOCK(how, (c)[0]), FMM_BLOCK(how, (c)[1])
#define FMM_64(how, c) FMM_32(how, c), FMM_32(how, (c) + 2)
#define FMM_PREDICATE(add) "{\n.reg .pred p;\nsetp.ne.b32 p, " #add ", 0;\n"
#define FMM_STEP_32                                                                              \
  "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11," \
  "%12,%13,%14,%15}, "
#define FMM_STEP_64                                                                              \
  "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11," \
  "%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
#define FMM_FRAGMENT(a) "r"((a).r[0]), "r"((a).r[1]), "r"((a).r[2]), "r"((a).r[3])

/// Begin a step with 64 columns: c += a b or, unless kAdd, c = a b. kTurned: operands in shared
/// memory are, or (kLeftTurned) the right one alone.
template <bool kAdd, bool kTurned>
__device__ __forceinline__ void begin_step(Block (&c)[4], const Fragment& a, uint64_t b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kAdd) {
    asm volatile(FMM_PREDICATE(1) FMM_STEP_64 "{%32,%33,%34,%35}, %36, p, 1, 1, %37;\n}\n"
                 : FMM_64("+f", c)
                 : FMM_FRAGMENT(a), "l"(b), "n"(int(kTurned)));
  } else {
    asm volatile(FMM_PREDICATE(0) FMM_STEP_64 "{%32,%33,%34,%35}, %36, p, 1, 1, %37;\n}\n"
                 : FMM_64("=f", c)
                 : FMM_FRAGMENT(a), "l"(b), "n"(int(kTurned)));
  }
#endif
}
template <bool kAdd, bool kTurned, bool kLeftTurned = kTurned>
__device__ __forceinline__ void begin_step(Block (&c)[4], uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kAdd) {
    asm volatile(FMM_PREDICATE(1) FMM_STEP_64 "%32, %33, p, 1, 1, %34, %35;\n}\n"
                 : FMM_64("+f", c)
                 : "l"(a), "l"(b), "n"(int(kLeftTurned)), "n"(int(kTurned)));
  } else {
    asm volatile(FMM_PREDICATE(0) FMM_STEP_64 "%32, %33, p, 1, 1, %34, %35;\n}\n"
                 : FMM_64("=f", c)
                 : "l"(a), "l"(b), "n"(int(kLeftTurned)), "n"(int(kTurned)));
  }
#endif
}
/// The same with 32, from c on; none is turned.
template <bool kAdd>
__device__ __forceinline__ void begin_step(Block* c, uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kAdd) {
    asm volatile(FMM_PREDICATE(1) FMM_STEP_32 "%16, %17, p, 1, 1, 0, 0;\n}\n"
                 : FMM_32("+f", c)
                 : "l"(a), "l"(b));
  } else {
    asm volatile(FMM_PREDICATE(0) FMM_STEP_32 "%16, %17, p, 1, 1, 0, 0;\n}\n"
                 : FMM_32("=f", c)
                 : "l"(a), "l"(b));
  }
#endif
}
#undef FMM_FRAGMENT
#undef FMM_STEP_64
#undef FMM_STEP_32
#undef FMM_PREDICATE
#undef FMM_64
#undef FMM_32
#undef FMM_BLOCK

}  // namespace fmmformer::cuda
