// SPDX-License-Identifier: Apache-2.0
// Products of a warpgroup (warpgroup.cuh) of up to 256 columns, several groups of them under way.
//
// A step is C[64, N] += A[64, 16] B[16, N]. Warp w holds of C the rows 16 w to 16 w + 15, as Blocks
// (fragment.cuh) of sixteen columns; of A, where registers hold it, a Fragment. What lies in shared
// memory are panels: rows of 64 channels, 128 bytes, whose eight pieces of sixteen bytes are
// permuted by the row's number (`swizzled`); a panel begins at a multiple of 1024 bytes. A panel
// serves both ways: with its rows as the operand's rows (or columns of B), the sum running over
// channels; or turned, the sum running over its rows.
#pragma once

#include "attention/fmm/cuda/warpgroup.cuh"

namespace fmmformer::cuda::warpgroups {

constexpr int kPanelRow = 128;     // bytes
constexpr int kPanelEight = 1024;  // eight rows

/// Bytes into a panel of a row's piece.
__device__ __forceinline__ int swizzled(int row, int piece) {
  return row * kPanelRow + ((piece ^ (row & 7)) << 4);
}

/// An operand: where it begins in shared memory, and how far its next panel is (turned operands of
/// more than 64 channels); both in units of sixteen bytes, so that constants can be added. This is
/// the lower half of what the instruction wants; the upper one is always the same: the distance of
/// eight rows, and the kind of permutation.
using Operand = uint32_t;
__device__ __forceinline__ Operand operand(uint32_t place, int next_panel = 1) {
  return place + (uint32_t(next_panel) << 16);
}
#define FMM_UPPER_HALF "0x40000040"
static_assert(kPanelEight >> 4 == 0x40);

using cuda::arrived;

/// Those begun since the last time become a group.
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
/// Waits for all groups but the newest kPending. What follows must not be moved before it: pass the
/// results through `arrived`.
template <int kPending>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}
template <int kCount>
__device__ __forceinline__ void arrived(Fragment (&f)[kCount]) {
#pragma unroll
  for (int i = 0; i < 4 * kCount; ++i) asm volatile("" : "+r"(f[i / 4].r[i % 4])::"memory");
}

enum class Turned { kNo = 0, kYes = 1 };

#define FMM_BLOCK(c)                                                                   \
  "+f"((c)[0][0]), "+f"((c)[0][1]), "+f"((c)[0][2]), "+f"((c)[0][3]), "+f"((c)[1][0]), \
      "+f"((c)[1][1]), "+f"((c)[1][2]), "+f"((c)[1][3])

/// c += a b, or, without `add`, c = a b. One step of sixteen; b's columns are 16 kCount.
template <Turned kTurnedA, Turned kTurnedB>
__device__ __forceinline__ void product(Block (&c)[16], Operand a, Operand b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b32 h;\n.reg .b64 a, b;\nsetp.ne.b32 p, %130, 0;\n"
      "mov.b32 h, " FMM_UPPER_HALF
      ";\nmov.b64 a, {%128, h};\nmov.b64 b, {%129, h};\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%"
      "25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%"
      "48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%"
      "71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%"
      "94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%"
      "113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}, a, b, p, 1, 1, "
      "%131, %132;\n}\n"
      : FMM_BLOCK(c[0]), FMM_BLOCK(c[1]), FMM_BLOCK(c[2]), FMM_BLOCK(c[3]), FMM_BLOCK(c[4]),
        FMM_BLOCK(c[5]), FMM_BLOCK(c[6]), FMM_BLOCK(c[7]), FMM_BLOCK(c[8]), FMM_BLOCK(c[9]),
        FMM_BLOCK(c[10]), FMM_BLOCK(c[11]), FMM_BLOCK(c[12]), FMM_BLOCK(c[13]), FMM_BLOCK(c[14]),
        FMM_BLOCK(c[15])
      : "r"(a), "r"(b), "r"(int(add)), "n"(int(kTurnedA)), "n"(int(kTurnedB)));
}
template <Turned kTurnedA, Turned kTurnedB>
__device__ __forceinline__ void product(Block (&c)[8], Operand a, Operand b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b32 h;\n.reg .b64 a, b;\nsetp.ne.b32 p, %66, 0;\n"
      "mov.b32 h, " FMM_UPPER_HALF
      ";\nmov.b64 a, {%64, h};\nmov.b64 b, {%65, h};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%"
      "25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%"
      "48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, a, b, p, 1, 1, %67, "
      "%68;\n}\n"
      : FMM_BLOCK(c[0]), FMM_BLOCK(c[1]), FMM_BLOCK(c[2]), FMM_BLOCK(c[3]), FMM_BLOCK(c[4]),
        FMM_BLOCK(c[5]), FMM_BLOCK(c[6]), FMM_BLOCK(c[7])
      : "r"(a), "r"(b), "r"(int(add)), "n"(int(kTurnedA)), "n"(int(kTurnedB)));
}
template <Turned kTurnedB>
__device__ __forceinline__ void product(Block (&c)[8], const Fragment& a, Operand b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b32 h;\n.reg .b64 b;\nsetp.ne.b32 p, %69, 0;\n"
      "mov.b32 h, " FMM_UPPER_HALF
      ";\nmov.b64 b, {%68, h};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%"
      "25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%"
      "48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, b, p, "
      "1, 1, %70;\n}\n"
      : FMM_BLOCK(c[0]), FMM_BLOCK(c[1]), FMM_BLOCK(c[2]), FMM_BLOCK(c[3]), FMM_BLOCK(c[4]),
        FMM_BLOCK(c[5]), FMM_BLOCK(c[6]), FMM_BLOCK(c[7])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b), "r"(int(add)),
        "n"(int(kTurnedB)));
}
template <Turned kTurnedA, Turned kTurnedB>
__device__ __forceinline__ void product(Block (&c)[4], Operand a, Operand b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b32 h;\n.reg .b64 a, b;\nsetp.ne.b32 p, %34, 0;\n"
      "mov.b32 h, " FMM_UPPER_HALF
      ";\nmov.b64 a, {%32, h};\nmov.b64 b, {%33, h};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%"
      "25,%26,%27,%28,%29,%30,%31}, a, b, p, 1, 1, %35, %36;\n}\n"
      : FMM_BLOCK(c[0]), FMM_BLOCK(c[1]), FMM_BLOCK(c[2]), FMM_BLOCK(c[3])
      : "r"(a), "r"(b), "r"(int(add)), "n"(int(kTurnedA)), "n"(int(kTurnedB)));
}
template <Turned kTurnedB>
__device__ __forceinline__ void product(Block (&c)[4], const Fragment& a, Operand b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b32 h;\n.reg .b64 b;\nsetp.ne.b32 p, %37, 0;\n"
      "mov.b32 h, " FMM_UPPER_HALF
      ";\nmov.b64 b, {%36, h};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%"
      "25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, b, p, 1, 1, %38;\n}\n"
      : FMM_BLOCK(c[0]), FMM_BLOCK(c[1]), FMM_BLOCK(c[2]), FMM_BLOCK(c[3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b), "r"(int(add)),
        "n"(int(kTurnedB)));
}
template <Turned kTurnedA, Turned kTurnedB>
__device__ __forceinline__ void product(Block (&c)[2], Operand a, Operand b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b32 h;\n.reg .b64 a, b;\nsetp.ne.b32 p, %18, 0;\n"
      "mov.b32 h, " FMM_UPPER_HALF
      ";\nmov.b64 a, {%16, h};\nmov.b64 b, {%17, h};\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, a, b, p, 1, 1, %19, %20;\n}\n"
      : FMM_BLOCK(c[0]), FMM_BLOCK(c[1])
      : "r"(a), "r"(b), "r"(int(add)), "n"(int(kTurnedA)), "n"(int(kTurnedB)));
}
#undef FMM_BLOCK
#undef FMM_UPPER_HALF

}  // namespace fmmformer::cuda::warpgroups
