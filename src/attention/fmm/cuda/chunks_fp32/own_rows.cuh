// SPDX-License-Identifier: Apache-2.0
// A chunk's own rows on their way from memory to pairs, in the registers of eight warps, where
// there are feeders.
#pragma once

#include "attention/fmm/cuda/chunks_fp32/chunk_features.cuh"

namespace fmmformer::cuda::chunks_fp32 {

template <typename G, Sweep kSweep>
struct OwnRows {
  using W = Walk<G, kSweep>;
  using M = Memory<G, kSweep>;
  using Scales = typename W::Scales;
  Piece rows[M::kOwnTensors][W::kShare];
  // One of the numbers of a row, see Memory::kOwnNumbers.
  static constexpr bool kHasNumbers = kSweep == Sweep::kQueries;
  static_assert(G::kFields * G::kChunk <= kFeeders);
  float number = 0.f;

  /// They are wanted later: meanwhile they come to the second-level cache.
  static __device__ __forceinline__ void prefetch(const W& walk) {
    constexpr int kQuarters = 4;
    static_assert(kFeeders == kQuarters * G::kChunk);
    const int token = walk.token(0) + static_cast<int>(Scales::copier() / kQuarters);
    const int channel = threadIdx.x % kQuarters * (G::kDim / kQuarters);
    if (token >= walk.args.length || !has_channel<G>(walk.args.head_dim, channel)) return;
#pragma unroll
    for (int which = 0; which < M::kOwnTensors; ++which) {
      const View& view = walk.own_view(which);
      const float* line = rows_of(view, walk.place) + int64_t(token) * view.row_stride + channel;
      asm volatile("prefetch.global.L2 [%0];\n" ::"l"(line));
    }
  }
  /// Their maxima are complete after the next barrier.
  __device__ __forceinline__ void load(const W& walk) {
#pragma unroll
    for (int which = 0; which < M::kOwnTensors; ++which) {
      const View& view = walk.own_view(which);
      const float* from = walk.share_of(view, walk.token(0));
      const int64_t step = W::kRowsAtOnce * view.row_stride;
#pragma unroll
      for (int i = 0; i < W::kShare; ++i) {
        Piece& x = rows[which][i];
        x[0] = x[1] = x[2] = x[3] = 0.f;
        const bool live = walk.live >> (W::share_row() + i * W::kRowsAtOnce) & 1;
        if (live && walk.has_share()) load_piece(x, from);
        from += step;
      }
    }
    if constexpr (kHasNumbers) {
      const float* source = field() < G::kFields ? walk.row_numbers(field()) : nullptr;
      if (source) number = source[min(walk.token(0) + row(), walk.args.length - 1)];
    }
#pragma unroll
    for (int which = 0; which < M::kOwnTensors; ++which) {
      float largest = 0.f;
#pragma unroll
      for (int i = 0; i < W::kShare * kPiece; ++i)
        largest = fmaxf(largest, fabsf(rows[which][i / kPiece][i % kPiece]));
      Scales::raise_maximum(walk.set(), kOwnRows + which, largest);
    }
  }
  __device__ __forceinline__ void store(const W& walk) const {
    const int high = high_of_piece(W::share_column());
#pragma unroll
    for (int which = 0; which < M::kOwnTensors; ++which) {
      const int shift = shift_for(walk.maximum(kOwnRows + which));
      Scales::set_shift(walk.set(), kOwnRows + which, shift);
      const float scale = power_of_2(shift);
#pragma unroll
      for (int i = 0; i < W::kShare; ++i)
        store_pairs(W::share_at(i, [&](int t) { return W::own_area(which) + t * G::kTile; }), high,
                    rows[which][i], scale);
    }
    if (kHasNumbers && field() < G::kFields)
      *shared_at(M::kOwnNumbers + field() * G::kChunk + row()) = number;
  }

 private:
  /// Which number, and of which row.
  static __device__ __forceinline__ int field() { return Scales::copier() / G::kChunk; }
  static __device__ __forceinline__ int row() { return threadIdx.x % G::kChunk; }
};

}  // namespace fmmformer::cuda::chunks_fp32
