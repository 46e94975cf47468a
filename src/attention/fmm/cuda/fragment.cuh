// SPDX-License-Identifier: Apache-2.0
// Blocks of 16 x 16 numbers in the registers of a warp, and their products on tensor cores.
//
// A Block is a product's result in fp32, a Fragment an operand in bf16. All products have one form,
//
//   block += a b^T      with the sum over the columns of both,
//
// since then every fragment serves on either side: lane (g = lane / 4, t = lane % 4) holds of both
// kinds the rows g and g + 8 and, of each, the columns 2t, 2t + 1, 8 + 2t, 8 + 2t + 1. A block
// becomes a fragment by rounding alone; turned() makes the fragment of the transposed block.
#pragma once

#include "attention/fmm/cuda/mma.cuh"

namespace fmmformer::cuda {

using Elem = Bf16::Elem;
using Fragment = Bf16::A;                // r[2 * (column / 8) + row / 8]
using Block = float[2][4];               // [column / 8][2 * (row / 8) + column % 2]
constexpr int kBlockDim = 16;            // rows and columns
constexpr uint32_t kOnes = 0x3f803f80u;  // two of them

/// The row and column of element i of half n of a block.
__device__ __forceinline__ int row_of(int i) { return lane_id() / 4 + i / 2 * 8; }
__device__ __forceinline__ int column_of(int n, int i) { return n * 8 + lane_id() % 4 * 2 + i % 2; }

__device__ __forceinline__ void clear(Block& c) {
#pragma unroll
  for (int i = 0; i < 8; ++i) c[i / 4][i % 4] = 0.f;
}
template <int kCount>
__device__ __forceinline__ void clear(Block (&blocks)[kCount]) {
#pragma unroll
  for (int b = 0; b < kCount; ++b) clear(blocks[b]);
}

__device__ __forceinline__ Fragment rounded(const Block& c) {
  return {{Bf16::pack(c[0][0], c[0][1]), Bf16::pack(c[0][2], c[0][3]), Bf16::pack(c[1][0], c[1][1]),
           Bf16::pack(c[1][2], c[1][3])}};
}

/// What rounding left off, rounded itself: two products then lose nothing that matters.
__device__ __forceinline__ Fragment rounded_rest(const Block& c, const Fragment& rounded_c) {
  Block rest;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float low, high;
    Bf16::unpack(rounded_c.r[i], low, high);
    const int first = i % 2 * 2;
    rest[i / 2][first] = c[i / 2][first] - low, rest[i / 2][first + 1] = c[i / 2][first + 1] - high;
  }
  return rounded(rest);
}

/// Sixteen rows and columns of a tile in shared memory; turned: its columns as rows. What is used
/// on the right side of products alone comes in the order of registers that this side wants.
enum class Side { kAny, kRight };
template <Side kSide = Side::kAny>
__device__ __forceinline__ Fragment load(const Elem* tile, int stride) {
  if constexpr (kSide == Side::kAny) return Bf16::load_a(tile, stride);
  Bf16::B b[2];
  Bf16::load_b(b, tile, stride);
  return {{b[0].r[0], b[1].r[0], b[0].r[1], b[1].r[1]}};
}
template <Side kSide = Side::kAny>
__device__ __forceinline__ Fragment load_turned(const Elem* tile, int stride) {
  if constexpr (kSide == Side::kAny) return Bf16::load_a_transposed(tile, stride);
  Bf16::B b[2];
  Bf16::load_b_transposed(b, tile, stride);
  return {{b[0].r[0], b[1].r[0], b[0].r[1], b[1].r[1]}};
}
/// For the right side, with every lane's own place: row lane / 16 * 8 + lane % 8 and column
/// lane / 8 % 2 * 8 of the sixteen; turned, row lane % 16 and column lane / 16 * 8.
__device__ __forceinline__ Fragment load_right_at(const Elem* mine) {
  uint32_t r[4];
  Bf16::ldmatrix4(r, mine);
  return {{r[0], r[2], r[1], r[3]}};
}
__device__ __forceinline__ Fragment load_turned_right_at(const Elem* mine) {
  uint32_t r[4];
  Bf16::ldmatrix4_transposed(r, mine);
  return {{r[0], r[2], r[1], r[3]}};
}
template <Side kSide = Side::kAny, int kCount>
__device__ __forceinline__ void load(Fragment (&f)[kCount], const Elem* tile, int stride) {
#pragma unroll
  for (int s = 0; s < kCount; ++s) f[s] = load<kSide>(tile + s * kBlockDim, stride);
}
__device__ __forceinline__ uint32_t turned(uint32_t eight_by_eight) {
  uint32_t result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(result) : "r"(eight_by_eight));
  return result;
}
__device__ __forceinline__ Fragment turned(const Fragment& f) {
  return {{turned(f.r[0]), turned(f.r[2]), turned(f.r[1]), turned(f.r[3])}};
}

/// c += a b^T.
__device__ __forceinline__ void add_product(Block& c, const Fragment& a, const Fragment& b) {
  Bf16::multiply(c[0], a, {{b.r[0], b.r[2]}});
  Bf16::multiply(c[1], a, {{b.r[1], b.r[3]}});
}
/// c = a b^T.
__device__ __forceinline__ void begin_product(Block& c, const Fragment& a, const Fragment& b) {
  Bf16::begin(c[0], a, {{b.r[0], b.r[2]}});
  Bf16::begin(c[1], a, {{b.r[1], b.r[3]}});
}
/// The sum of products over several fragments: rows of more than sixteen columns.
template <int kCount>
__device__ __forceinline__ void multiply(Block& c, const Fragment (&a)[kCount],
                                         const Fragment (&b)[kCount]) {
  clear(c);
#pragma unroll
  for (int s = 0; s < kCount; ++s) add_product(c, a[s], b[s]);
}

/// The fragment's numbers times a factor for each row, g and g + 8.
__device__ __forceinline__ Fragment scaled_rows(const Fragment& f, const float (&factor)[2]) {
  Fragment result;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float low, high;
    Bf16::unpack(f.r[i], low, high);
    result.r[i] = Bf16::pack(low * factor[i % 2], high * factor[i % 2]);
  }
  return result;
}
/// ... for each column, from factors [16].
__device__ __forceinline__ Fragment scaled_columns(const Fragment& f, const float* factors) {
  Fragment result;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 factor = *reinterpret_cast<const float2*>(factors + i / 2 * 8 + lane_id() % 4 * 2);
    float low, high;
    Bf16::unpack(f.r[i], low, high);
    result.r[i] = Bf16::pack(low * factor.x, high * factor.y);
  }
  return result;
}

/// A fragment whose rows are all the same: the numbers of columns 2t, 2t + 1, 8 + 2t, 8 + 2t + 1.
__device__ __forceinline__ Fragment equal_rows(uint32_t low_columns, uint32_t high_columns) {
  return {{low_columns, low_columns, high_columns, high_columns}};
}

/// Clears columns whose bit is not set.
__device__ __forceinline__ void keep_columns(Block& c, uint32_t live) {
  if ((live & 0xffffu) == 0xffffu) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (!(live >> column_of(i / 4, i) & 1)) c[i / 4][i % 4] = 0.f;
  }
}
/// The same of an operand.
__device__ __forceinline__ void keep_columns(Fragment& f, uint32_t live) {
  if ((live & 0xffffu) == 0xffffu) return;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const uint32_t bits = live >> column_of(n, 0);
    const uint32_t kept = (bits & 1 ? 0xffffu : 0u) | (bits & 2 ? 0xffff0000u : 0u);
    f.r[2 * n] &= kept, f.r[2 * n + 1] &= kept;
  }
}
/// Clears what a block on the diagonal must not see: columns after the row or, kBefore, before it.
template <bool kBefore>
__device__ __forceinline__ void cut_at_diagonal(Block& c) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int offset = column_of(i / 4, i) - row_of(i % 4);
    if (kBefore ? offset < 0 : offset > 0) c[i / 4][i % 4] = 0.f;
  }
}

/// The same of a rounded block, where whole registers fall away.
template <bool kBefore>
__device__ __forceinline__ void cut_at_diagonal(Fragment& f) {
  const int row = lane_id() / 4, column = lane_id() % 4 * 2;
  const bool low = kBefore ? column >= row : column <= row;
  const bool high = kBefore ? column + 1 >= row : column + 1 <= row;
  const uint32_t keep = (low ? 0xffffu : 0u) | (high ? 0xffff0000u : 0u);
  f.r[0] &= keep, f.r[3] &= keep, f.r[kBefore ? 1 : 2] = 0;
}

}  // namespace fmmformer::cuda
