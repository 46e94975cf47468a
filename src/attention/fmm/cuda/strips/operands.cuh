// SPDX-License-Identifier: Apache-2.0
// Operands of products in either type: how tiles of sixteen tokens lie in shared memory, how
// operands come from there, and what happens to them between two products.
//
// bf16   rows are padded by sixteen bytes; ldmatrix finds eight of them in different banks.
// fp32   rows are as long as a head. Eights of channels change places by row, so that both kinds of
//        loads, pairs along four rows and numbers down every other row, meet different banks.
#pragma once

#include "attention/fmm/cuda/strips/shape.cuh"

namespace fmmformer::cuda::strips {

/// Operands, or results, of sixteen rows and all channels.
template <typename G>
using Fragments = typename G::Fragment[G::kBlocks];
template <typename G>
using Blocks = Block[G::kBlocks];

/// Where a tile's number is. In fp32, eights of columns are found by exclusive or:
/// offset_of(row, c + 8 i) = offset_of(row, c) ^ 8 i.
template <typename G>
__device__ __forceinline__ int offset_of(int row, int column) {
  const int eights = G::kWide ? (row >> 1 ^ row << 1) & (G::kDim / 8 - 1) : 0;
  return row * G::kStride + (column ^ eights * 8);
}

/// The number so many bytes further. What differs by lane comes in bytes, as a load's address wants
/// it; `same` does not differ.
template <typename T>
__device__ __forceinline__ T number_at(const float* same, int bytes) {
  return *reinterpret_cast<const T*>(reinterpret_cast<const char*>(same) + bytes);
}

/// Sixteen rows and the columns of a block; row_at(row): where that row begins, of which eight
/// after a multiple of eight lie kStride apart.
template <typename G, Side kSide = Side::kAny, typename RowAt>
__device__ __forceinline__ typename G::Fragment load_rows(const RowAt& row_at, int block) {
  const int lane = lane_id(), first = block * kBlockDim;
  if constexpr (!G::kWide) {
    uint32_t r[4];
    if constexpr (kSide == Side::kAny) {
      Bf16::ldmatrix4(r, row_at(lane % 16) + first + lane / 16 * 8);
      return {{r[0], r[1], r[2], r[3]}};
    } else {
      Bf16::ldmatrix4(r, row_at(lane / 16 * 8 + lane % 8) + first + lane / 8 % 2 * 8);
      return {{r[0], r[2], r[1], r[3]}};
    }
  } else {
    WideFragment f;
    const int mine = offset_of<G>(lane / 4, lane % 4 * 2) * sizeof(float);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = number_at<float2>(row_at(i % 2 * 8), mine ^ (first + i / 2 * 8) * 4);
      f.x[i / 2][i % 2 * 2] = pair.x, f.x[i / 2][i % 2 * 2 + 1] = pair.y;
    }
    return f;
  }
}
/// The same, turned: the block's columns as rows.
template <typename G, Side kSide = Side::kAny, typename RowAt>
__device__ __forceinline__ typename G::Fragment load_columns(const RowAt& row_at, int block) {
  const int lane = lane_id(), first = block * kBlockDim;
  if constexpr (!G::kWide) {
    uint32_t r[4];
    if constexpr (kSide == Side::kAny) {
      Bf16::ldmatrix4_transposed(r, row_at(lane / 16 * 8 + lane % 8) + first + lane / 8 % 2 * 8);
      return {{r[0], r[1], r[2], r[3]}};
    } else {
      Bf16::ldmatrix4_transposed(r, row_at(lane % 16) + first + lane / 16 * 8);
      return {{r[0], r[2], r[1], r[3]}};
    }
  } else {
    WideFragment f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int mine = offset_of<G>(lane % 4 * 2 + i % 2, lane / 4) * sizeof(float);
      f.x[i / 4][i % 4] = number_at<float>(row_at(i / 4 * 8), mine ^ (first + i % 4 / 2 * 8) * 4);
    }
    return f;
  }
}
template <typename G>
struct TileRows {
  const typename G::Elem* tile;
  __device__ __forceinline__ const typename G::Elem* operator()(int row) const {
    return tile + row * G::kStride;
  }
};
template <typename G, Side kSide = Side::kAny>
__device__ __forceinline__ void load(Fragments<G>& f, const typename G::Elem* tile) {
#pragma unroll
  for (int s = 0; s < G::kBlocks; ++s) f[s] = load_rows<G, kSide>(TileRows<G>{tile}, s);
}
template <typename G>
__device__ __forceinline__ void load_turned(Fragments<G>& f, const typename G::Elem* tile) {
#pragma unroll
  for (int s = 0; s < G::kBlocks; ++s) f[s] = load_columns<G>(TileRows<G>{tile}, s);
}
/// Two neighbours of a row.
template <typename Elem>
__device__ __forceinline__ void store_pair(Elem* to, float first, float second) {
  if constexpr (sizeof(Elem) == 2)
    Bf16::store_pair(to, first, second);
  else
    Tf32x3::store_pair(to, first, second);
}

/// A product's result as an operand.
template <typename G>
__device__ __forceinline__ typename G::Fragment operand(const Block& c) {
  if constexpr (!G::kWide)
    return rounded(c);
  else {
    WideFragment f;
#pragma unroll
    for (int i = 0; i < 8; ++i) f.x[i / 4][i % 4] = c[i / 4][i % 4];
    return f;
  }
}
/// An operand whose rows are all the same: the numbers of columns 2t, 2t + 1, 8 + 2t, 9 + 2t.
template <typename G>
__device__ __forceinline__ typename G::Fragment equal_rows(const float (&x)[4]) {
  if constexpr (!G::kWide)
    return cuda::equal_rows(Bf16::pack(x[0], x[1]), Bf16::pack(x[2], x[3]));
  else {
    WideFragment f;
#pragma unroll
    for (int i = 0; i < 8; ++i) f.x[i / 4][i % 4] = x[i / 4 * 2 + i % 2];
    return f;
  }
}
template <typename G>
__device__ __forceinline__ typename G::Fragment ones() {
  if constexpr (!G::kWide)
    return cuda::equal_rows(kOnes, kOnes);
  else
    return equal_rows<G>({1.f, 1.f, 1.f, 1.f});
}
/// c += a b^T for an operand of ones and zeros.
__device__ __forceinline__ void add_selected(Block& c, const Fragment& a, const Fragment& b) {
  add_product(c, a, b);
}
__device__ __forceinline__ void add_selected(Block& c, const WideFragment& a,
                                             const WideFragment& b) {
  add_product<true>(c, a, b);
}

/// Pair j of an operand: columns j / 2 * 8 + 2t and the next of row g + j % 2 * 8.
__device__ __forceinline__ void pair_of(const Fragment& f, int j, float& first, float& second) {
  Bf16::unpack(f.r[j], first, second);
}
__device__ __forceinline__ void pair_of(const WideFragment& f, int j, float& first, float& second) {
  first = f.x[j / 2][j % 2 * 2], second = f.x[j / 2][j % 2 * 2 + 1];
}

/// Clears the rows of dead tokens: features of 0 are not 0.
template <int kCount>
__device__ __forceinline__ void keep_live(Fragment (&f)[kCount], uint32_t live) {
  if ((live & 0xffffu) == 0xffffu) return;
  const uint32_t low = live >> row_of(0) & 1 ? ~0u : 0u, high = live >> row_of(2) & 1 ? ~0u : 0u;
#pragma unroll
  for (int s = 0; s < kCount; ++s) {
    f[s].r[0] &= low, f[s].r[2] &= low, f[s].r[1] &= high, f[s].r[3] &= high;
  }
}
template <int kCount>
__device__ __forceinline__ void keep_live(WideFragment (&f)[kCount], uint32_t live) {
  if ((live & 0xffffu) == 0xffffu) return;
#pragma unroll
  for (int i = 0; i < kCount * 8; ++i) {
    if (!(live >> row_of(i % 4) & 1)) f[i / 8].x[i / 4 % 2][i % 4] = 0.f;
  }
}
/// Rows g and g + 8 times a factor each, in the operand's type.
template <int kCount>
__device__ __forceinline__ void scale(Fragment (&f)[kCount], const float (&factor)[2]) {
#pragma unroll
  for (int s = 0; s < kCount; ++s) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      f[s].r[i] = as_bits(__hmul2(as_pair(f[s].r[i]), both(factor[i % 2])));
  }
}
template <int kCount>
__device__ __forceinline__ void scale(WideFragment (&f)[kCount], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < kCount * 8; ++i) f[i / 8].x[i / 4 % 2][i % 4] *= factor[i % 4 / 2];
}
/// Columns times the numbers [16 blocks] of the operand's type in shared memory.
template <int kCount>
__device__ __forceinline__ void scale_columns(Fragment (&f)[kCount], const Elem* factors) {
  factors += lane_id() % 4 * 2;
#pragma unroll
  for (int i = 0; i < kCount * 4; ++i) {
    const uint32_t factor =
        *reinterpret_cast<const uint32_t*>(factors + i / 4 * kBlockDim + i % 4 / 2 * 8);
    f[i / 4].r[i % 4] = as_bits(__hmul2(as_pair(f[i / 4].r[i % 4]), as_pair(factor)));
  }
}
template <int kCount>
__device__ __forceinline__ void scale_columns(WideFragment (&f)[kCount], const float* factors) {
  factors += lane_id() % 4 * 2;
#pragma unroll
  for (int n = 0; n < kCount * 2; ++n) {
    const float2 factor = *reinterpret_cast<const float2*>(factors + n * 8);
#pragma unroll
    for (int i = 0; i < 4; ++i) f[n / 2].x[n % 2][i] *= i % 2 ? factor.y : factor.x;
  }
}
template <typename F, int kCount>
__device__ __forceinline__ void turn(F (&turned_f)[kCount], const F (&f)[kCount]) {
#pragma unroll
  for (int s = 0; s < kCount; ++s) turned_f[s] = turned(f[s]);
}

/// Sums over the columns of operands, of rows g and g + 8.
template <typename G>
struct RowSums {
  float parts[4] = {0.f, 0.f, 0.f, 0.f};

  __device__ __forceinline__ void add(const typename G::Fragment& f) {
    if constexpr (G::kWide)
      add(f, {1.f, 1.f, 1.f, 1.f});
    else
      Bf16::multiply(parts, f, {{kOnes, kOnes}});
  }
  /// Each times the number of its column: 2t, 2t + 1, 8 + 2t, 9 + 2t.
  __device__ __forceinline__ void add(const typename G::Fragment& f, const float (&numbers)[4]) {
    if constexpr (G::kWide) {
#pragma unroll
      for (int i = 0; i < 8; ++i) parts[i % 4] += f.x[i / 4][i % 4] * numbers[i / 4 * 2 + i % 2];
    } else {
      Bf16::multiply(parts, f, Bf16::make_b(numbers));
    }
  }
  __device__ __forceinline__ float of(int r) const {
    return G::kWide ? quad_sum(parts[2 * r] + parts[2 * r + 1]) : parts[2 * r];
  }
};

}  // namespace fmmformer::cuda::strips
