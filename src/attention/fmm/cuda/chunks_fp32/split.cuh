// SPDX-License-Identifier: Apache-2.0
// Blocks of 16 x 16 fp32 numbers as operands of tensor cores, and their products to nearly fp32's
// precision.
//
// An operand's number is the sum of two fp16 numbers: x rounded, and the rest, rounded again. That
// leaves off some 2^-23 of it, or 2^-25 where that is more: operands are multiplied with powers of
// two (scaling.cuh) that bring the largest near 2^15, so that numbers 2^15 times smaller still have
// all their bits. A product is three of fp16,
//
//   a b = low(a) high(b) + high(a) low(b) + high(a) high(b),
//
// which are exact before they are summed up; tensor cores then cut a sum off at every step, where
// others round it. All products have one form, block += a b^T with the
// sum over the columns of both: lane (g = lane / 4, t = lane % 4) holds of either operand, and of a
// block, the rows g and g + 8 and, of each, the columns 2t, 2t + 1, 8 + 2t, 8 + 2t + 1. The two
// sides differ in the order of registers.
//
// In shared memory every eight numbers of a row are eight high parts and eight low ones, so that
// `ldmatrix` finds operands in rows or, turned, in columns. The high parts come first, or, in every
// second 32 columns, last: threads that write a row's high parts then meet all banks.
#pragma once

#include <cuda_fp16.h>

#include "attention/fmm/cuda/chunks_fp32/shape.cuh"

namespace fmmformer::cuda::chunks_fp32 {

constexpr uint32_t kHalfOnes = 0x3c003c00u;  // two fp16 ones

struct Left {
  uint32_t high[4], low[4];  // two columns each: [2 * (column / 8) + row / 8]
};
struct Right {
  uint32_t high[4], low[4];  // [2 * (row / 8) + column / 8]
};

__device__ __forceinline__ uint32_t pack_halves(float x, float y) {
  uint32_t both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
  return both;
}
__device__ __forceinline__ float2 unpack_halves(uint32_t both) {
  return __half22float2(*reinterpret_cast<const __half2*>(&both));
}
__device__ __forceinline__ void split(uint32_t& high, uint32_t& low, float x, float y) {
  high = pack_halves(x, y);
  const float2 rounded = unpack_halves(high);
  low = pack_halves(x - rounded.x, y - rounded.y);
}
__device__ __forceinline__ float2 joined(uint32_t high, uint32_t low) {
  const float2 x = unpack_halves(high), rest = unpack_halves(low);
  return make_float2(x.x + rest.x, x.y + rest.y);
}

/// Numbers in the order of a left operand's.
using Values = float[8];
__device__ __forceinline__ Left split(const Values& v) {
  Left x;
#pragma unroll
  for (int i = 0; i < 4; ++i) split(x.high[i], x.low[i], v[2 * i], v[2 * i + 1]);
  return x;
}
/// A product's result times `scale` as an operand.
__device__ __forceinline__ Left split_result(const Block& c, float scale) {
  Values v;
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = c[i / 4][i % 4] * scale;
  return split(v);
}

/// Not volatile: the compiler may put steps where loads leave room.
__device__ __forceinline__ void step(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                     uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/// c += a b^T of parts that are fp16 numbers.
__device__ __forceinline__ void add_part(Block& c, const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  step(c[0], a, b[0], b[1]);
  step(c[1], a, b[2], b[3]);
}

/// c += scale * sum.
__device__ __forceinline__ void add_total(Block& c, const Block& sum, float scale) {
#pragma unroll
  for (int i = 0; i < 8; ++i) c[i / 4][i % 4] += scale * sum[i / 4][i % 4];
}
template <int kCount>
__device__ __forceinline__ void add_totals(Block (&c)[kCount], const Block (&sums)[kCount],
                                           float scale) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) add_total(c[i], sums[i], scale);
}

/// sums[i] += a b[i]^T for kCount blocks.
template <int kCount>
__device__ __forceinline__ void add_products(Block* sums, const Left& a, const Right (&b)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) add_part(sums[i], a.low, b[i].high);
#pragma unroll
  for (int i = 0; i < kCount; ++i) add_part(sums[i], a.high, b[i].high);
#pragma unroll
  for (int i = 0; i < kCount; ++i) add_part(sums[i], a.high, b[i].low);
}
/// The same where a's numbers are fp16 numbers.
template <int kCount>
__device__ __forceinline__ void add_exact_products(Block* sums, const uint32_t (&a)[4],
                                                   const Right (&b)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    add_part(sums[i], a, b[i].high);
    add_part(sums[i], a, b[i].low);
  }
}

/// Four pieces of eight rows by eight numbers: lane 8 i + j says where row j of piece i is.
__device__ __forceinline__ void load_pieces(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_turned_pieces(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// Where the parts of eight numbers are that come last.
constexpr int kLastParts = kEight / 2;
/// Where high parts are among those of column `column` and its neighbours; low parts: ^ kLastParts.
__device__ __forceinline__ int high_parts(int column) { return column / 32 % 2 * kLastParts; }
/// Rows of the state, unpadded, have their pieces of four words permuted by this.
__device__ __forceinline__ int key_of_row(int row) { return row % 8 * kLastParts; }

/// Operands from shared memory: `tile` is the place of sixteen rows there, `s` the block of sixteen
/// channels. Turned: the tile's columns as rows. None of these has two lanes at different rows of a
/// bank.
template <typename G>
struct Loader {
  // This lane's address among sixteen rows: by_row, eight rows after the others, or by_eight, eight
  // columns after the others; in a tile, and in the state its row and where in the row. In bytes.
  uint32_t by_row, by_eight;
  uint32_t state_row_by_row, state_piece_by_row, state_row_by_eight, state_piece_by_eight;

  __device__ Loader() {
    const int lane = lane_id();
    const int row = lane % 16, eight = lane / 16 * kEight;
    const int other_row = lane / 16 * 8 + lane % 8, other_eight = lane / 8 % 2 * kEight;
    const uint32_t memory = static_cast<uint32_t>(__cvta_generic_to_shared(shared_at(0)));
    by_row = memory + bytes(row * G::kRow + eight);
    by_eight = memory + bytes(other_row * G::kRow + other_eight);
    state_row_by_row = memory + bytes(row * G::kDim);
    state_piece_by_row = bytes(eight ^ key_of_row(row));
    state_row_by_eight = memory + bytes(other_row * G::kDim);
    state_piece_by_eight = bytes(other_eight ^ key_of_row(other_row));
  }
  __device__ __forceinline__ void forget() {
    asm volatile(""
                 : "+r"(by_row), "+r"(by_eight), "+r"(state_row_by_row), "+r"(state_piece_by_row),
                   "+r"(state_row_by_eight), "+r"(state_piece_by_eight));
  }

  __device__ __forceinline__ Left left(int tile, int s) const {
    Left x;
    load_pieces(x.high, by_row + bytes(tile) + bytes(high_of(s)));
    load_pieces(x.low, by_row + bytes(tile) + bytes(high_of(s) ^ kLastParts));
    return x;
  }
  __device__ __forceinline__ Right right(int tile, int s) const {
    Right x;
    load_pieces(x.high, by_eight + bytes(tile) + bytes(high_of(s)));
    load_pieces(x.low, by_eight + bytes(tile) + bytes(high_of(s) ^ kLastParts));
    return x;
  }
  __device__ __forceinline__ Left turned_left(int tile, int s) const {
    Left x;
    load_turned_pieces(x.high, by_eight + bytes(tile) + bytes(high_of(s)));
    load_turned_pieces(x.low, by_eight + bytes(tile) + bytes(high_of(s) ^ kLastParts));
    return x;
  }
  __device__ __forceinline__ Right turned_right(int tile, int s) const {
    Right x;
    load_turned_pieces(x.high, by_row + bytes(tile) + bytes(high_of(s)));
    load_turned_pieces(x.low, by_row + bytes(tile) + bytes(high_of(s) ^ kLastParts));
    return x;
  }
  /// Sixteen rows of the state.
  __device__ __forceinline__ Right state(int place, int s) const {
    Right x;
    const uint32_t piece = state_piece_by_eight ^ bytes(s * kBlockDim);
    load_pieces(x.high, state_row_by_eight + bytes(place) + piece);
    load_pieces(x.low, state_row_by_eight + bytes(place) + (piece ^ bytes(kLastParts)));
    return x;
  }
  /// Their columns as rows.
  __device__ __forceinline__ Right turned_state(int place, int s) const {
    Right x;
    const uint32_t piece = state_piece_by_row ^ bytes(s * kBlockDim);
    load_turned_pieces(x.high, state_row_by_row + bytes(place) + piece);
    load_turned_pieces(x.low, state_row_by_row + bytes(place) + (piece ^ bytes(kLastParts)));
    return x;
  }

 private:
  static __device__ __forceinline__ uint32_t bytes(int numbers) {
    return static_cast<uint32_t>(numbers) * sizeof(float);
  }
  /// Where block s has its high parts.
  static __device__ __forceinline__ int high_of(int s) {
    return s * kBlockDim + high_parts(s * kBlockDim);
  }
};

}  // namespace fmmformer::cuda::chunks_fp32
