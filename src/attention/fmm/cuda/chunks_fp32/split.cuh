// SPDX-License-Identifier: Apache-2.0
// Blocks of 16 x 16 fp32 numbers as operands of tensor cores, and their products to nearly fp32's
// precision.
//
// An operand's number is the sum of two tf32 numbers: x without its last 13 bits, and the rest, of
// which the tensor cores see eleven bits again. A product is three of tf32,
//
//   a b = low(a) high(b) + high(a) low(b) + high(a) high(b),
//
// which leaves off some 2^-21 of it. All products have one form, block += a b^T with the sum over
// the columns of both, in two steps of eight columns. Lane (g = lane / 4, t = lane % 4) holds in
// place [step][i] row g + 8 (i % 2) and one of two columns:
//
//   plain   8 step + t + 4 (i / 2)      as rows come from shared memory, four numbers at once
//   paired  8 step + 2 t + i / 2        as a product leaves them
//
// Either serves on both sides; both operands of a product have the same.
#pragma once

#include "attention/fmm/cuda/chunks_fp32/shape.cuh"

namespace fmmformer::cuda::chunks_fp32 {

using Values = float[2][4];
struct Operand {
  uint32_t high[2][4], low[2][4];
};

__device__ __forceinline__ Operand split(const Values& v) {
  Operand x;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t high = __float_as_uint(v[i / 4][i % 4]) & 0xffffe000u;
    x.high[i / 4][i % 4] = high;
    x.low[i / 4][i % 4] = __float_as_uint(v[i / 4][i % 4] - __uint_as_float(high));
  }
  return x;
}
/// A product's result as an operand, paired.
__device__ __forceinline__ Operand split_result(const Block& c) {
  Values v;
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i / 4][i % 4] = c[i / 4][i % 2 * 2 + i % 4 / 2];
  return split(v);
}

/// multiply_tf32, but not volatile: the compiler may put steps where loads leave room.
__device__ __forceinline__ void step(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                     uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/// c += a b^T of parts that are tf32 numbers, in one of the two steps.
__device__ __forceinline__ void add_step(Block& c, const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  step(c[0], a, b[0], b[2]);
  step(c[1], a, b[1], b[3]);
}

/// Sums of products. Tensor cores cut a sum off where others round it, at every step: the small
/// terms have a sum of their own, which adds little to that, and fewer steps wait for one another.
using cuda::clear;
struct Sum {
  Block high, low;
};
template <int kCount>
__device__ __forceinline__ void clear(Sum (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) clear(sums[i].high), clear(sums[i].low);
}
/// c += sum.
__device__ __forceinline__ void add_total(Block& c, const Sum& sum) {
#pragma unroll
  for (int i = 0; i < 8; ++i) c[i / 4][i % 4] += sum.high[i / 4][i % 4] + sum.low[i / 4][i % 4];
}
template <int kCount>
__device__ __forceinline__ void add_totals(Block (&c)[kCount], const Sum (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) add_total(c[i], sums[i]);
}
__device__ __forceinline__ void set_total(Block& c, const Sum& sum) {
#pragma unroll
  for (int i = 0; i < 8; ++i) c[i / 4][i % 4] = sum.high[i / 4][i % 4] + sum.low[i / 4][i % 4];
}

/// sums[i] += a b[i]^T for kCount blocks.
template <int kCount>
__device__ __forceinline__ void add_products(Sum* sums, const Operand& a,
                                             const Operand (&b)[kCount]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) add_step(sums[i].low, a.low[h], b[i].high[h]);
#pragma unroll
    for (int i = 0; i < kCount; ++i) add_step(sums[i].high, a.high[h], b[i].high[h]);
#pragma unroll
    for (int i = 0; i < kCount; ++i) add_step(sums[i].low, a.high[h], b[i].low[h]);
  }
}
/// The same where a's numbers are tf32 numbers.
template <int kCount>
__device__ __forceinline__ void add_exact_products(Sum* sums, const uint32_t (&a)[2][4],
                                                   const Operand (&b)[kCount]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      add_step(sums[i].high, a[h], b[i].high[h]);
      add_step(sums[i].low, a[h], b[i].low[h]);
    }
  }
}

/// Four pieces of eight rows by four numbers: lane 8 i + j says where row j of piece i is.
__device__ __forceinline__ void load_pieces(float (&v)[4], const float* at) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(at));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "r"(address)
               : "memory");
}

/// A row's key, below eight: rows of the state, unpadded, have their pieces permuted by it. Eight
/// rows have different keys, and those of four differ in more than the last bit.
__device__ __forceinline__ int key_of_row(int row) { return (row & 3) << 1 | (row >> 2 & 1); }

/// Operands from shared memory: `tile` is the place of sixteen rows there, `s` the block of sixteen
/// channels. Turned: the tile's columns as rows. None of these has two lanes at different rows of a
/// bank.
template <typename G>
struct Loader {
  int rows, turned;                // this lane's place in a tile,
  int state_row, state_piece;      // in sixteen rows of the state,
  int state_turned, state_column;  // and in their columns

  __device__ Loader() {
    const int lane = lane_id(), g = lane / 4, t = lane % 4;
    const int row = lane % 16, piece = lane / 16;
    rows = row * G::kRow + piece * kPiece;
    turned = 2 * t * G::kRow + g;
    state_row = row * G::kDim, state_piece = (piece ^ key_of_row(row)) * kPiece;
    state_turned = t * G::kDim, state_column = g ^ key_of_row(t) * kPiece;
  }
  __device__ __forceinline__ void forget() {
    asm volatile(""
                 : "+r"(rows), "+r"(turned), "+r"(state_row), "+r"(state_piece), "+r"(state_turned),
                   "+r"(state_column));
  }

  /// Plain.
  __device__ __forceinline__ void plain_values(Values& v, int tile, int s) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) load_pieces(v[h], shared_at(tile + rows + s * kBlockDim + h * 8));
  }
  __device__ __forceinline__ Operand plain(int tile, int s) const {
    Values v;
    plain_values(v, tile, s);
    return split(v);
  }
  /// Turned, paired.
  __device__ __forceinline__ void paired_values(Values& v, int tile, int s) const {
    const float* at = shared_at(tile + turned + s * kBlockDim);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i / 4][i % 4] = at[(i / 4 * 8 + i % 4 / 2) * G::kRow + i % 2 * 8];
  }
  __device__ __forceinline__ Operand paired(int tile, int s) const {
    Values v;
    paired_values(v, tile, s);
    return split(v);
  }
  /// Sixteen rows of the state, plain.
  __device__ __forceinline__ Operand state(int place, int s) const {
    Values v;
#pragma unroll
    for (int h = 0; h < 2; ++h)
      load_pieces(v[h], shared_at(place + state_row + (state_piece ^ (s * kBlockDim + h * 8))));
    return split(v);
  }
  /// Their columns as rows, plain too.
  __device__ __forceinline__ Operand state_columns(int place, int s) const {
    Values v;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      // Rows four apart have keys that differ in the last bit.
      const int column = state_column ^ (s * kBlockDim + i % 2 * 8 + i % 4 / 2 * kPiece);
      v[i / 4][i % 4] =
          *shared_at(place + state_turned + (i / 4 * 8 + i % 4 / 2 * 4) * G::kDim + column);
    }
    return split(v);
  }
};

}  // namespace fmmformer::cuda::chunks_fp32
