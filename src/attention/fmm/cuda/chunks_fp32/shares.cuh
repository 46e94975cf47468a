// SPDX-License-Identifier: Apache-2.0
// A chunk's rows on their way from fp32 numbers to pairs: each thread has a share of them. First
// all measure theirs, then all split them (chunk_features.cuh).
#pragma once

#include "attention/fmm/cuda/chunks_fp32/loops.cuh"
#include "attention/fmm/cuda/features.cuh"

namespace fmmformer::cuda::chunks_fp32 {

__device__ __forceinline__ float decay_of(float x) { return Bf16::exp(-fabsf(x)); }  // in fp32

/// Calls body(f, f') where f is one of the paper's maps, of x and exp(-|x|), and f' the slope, of
/// f: two pieces of code for all three, since elu_flip is elu of -x. Here
/// elu(x) + 1 = max(1 + x, exp(-|x|)).
template <typename G, typename Body>
__device__ __forceinline__ void with_paper_map(FeatureMap map, const Body& body) {
  if constexpr (G::kMayHaveTanh) {
    if (map == FeatureMap::kTanh1) {
      return body(
          [](float x, float e) {
            return scalar::feature_value(DeviceOps(), FeatureMap::kTanh1, x, e);
          },
          [](float f) { return f * (2.f - f); });
    }
  }
  const float sign = map == FeatureMap::kElu ? 1.f : -1.f;
  body([sign](float x, float e) { return fmaxf(fmaf(sign, x, 1.f), e); },
       [sign](float f) { return sign * (f > 1.f ? 1.f : f); });
}

__device__ __forceinline__ bool has_row_sums(const SweepArgs& args) {
  return args.normaliser == Normaliser::kRowSum;
}

/// A head's blend weights, the near field's last.
template <typename G>
struct Weights {
  float of[G::kFields];

  __device__ Weights(const SweepArgs& args, int head) {
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l)
      of[l] = weight_value(args.far_weight, args.first_map + l, head, 0);
    of[G::kMaps] = weight_value(args.near_weight, 0, head, 0);
  }
};

/// One of a few numbers in registers.
template <int kCount>
__device__ __forceinline__ float pick(const float (&numbers)[kCount], int index) {
  float result = numbers[0];
#pragma unroll
  for (int i = 1; i < kCount; ++i) result = i == index ? numbers[i] : result;
  return result;
}

using Piece = float[kPiece];
__device__ __forceinline__ void load_piece(Piece& x, const float* at) {
  const float4 all = *reinterpret_cast<const float4*>(at);
  x[0] = all.x, x[1] = all.y, x[2] = all.z, x[3] = all.w;
}
/// Where the high parts of a piece are in a row.
__device__ __forceinline__ int high_of_piece(int column) {
  return column / kEight * kEight + high_parts(column) + column % kEight / 2;
}
/// Four numbers times `scale`, as high and low parts; `high`: where in `row` the former are.
__device__ __forceinline__ void store_pairs(int row, int high, const Piece& x, float scale) {
  uint2 parts, rest;
  split(parts.x, rest.x, scale * x[0], scale * x[1]);
  split(parts.y, rest.y, scale * x[2], scale * x[3]);
  *reinterpret_cast<uint2*>(shared_at(row + high)) = parts;
  *reinterpret_cast<uint2*>(shared_at(row + (high ^ kLastParts))) = rest;
}
/// Four numbers from their parts, times `scale`.
__device__ __forceinline__ void load_pairs(Piece& x, int row, int high, float scale) {
  const uint2 parts = *reinterpret_cast<const uint2*>(shared_at(row + high)),
              rest = *reinterpret_cast<const uint2*>(shared_at(row + (high ^ kLastParts)));
  const float2 one = joined(parts.x, rest.x), two = joined(parts.y, rest.y);
  x[0] = scale * one.x, x[1] = scale * one.y, x[2] = scale * two.x, x[3] = scale * two.y;
}

/// A thread's share of kCount tiles on their way from numbers to pairs, which are in their place:
/// everybody has read what is there before anybody writes.
template <typename W, int kCount = W::kTiles>
struct Share {
  static constexpr int kRows = kCount * W::kRowsOfTile;
  Piece x[kRows];

  /// Returns the largest of them.
  template <typename PlaceOf>
  __device__ __forceinline__ float load(const PlaceOf& place_of) {
    float largest = 0.f;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      load_piece(x[i], shared_at(W::share_at(i, place_of) + W::share_column()));
#pragma unroll
      for (int j = 0; j < kPiece; ++j) largest = fmaxf(largest, fabsf(x[i][j]));
    }
    return largest;
  }
  template <typename PlaceOf>
  __device__ __forceinline__ void store(const PlaceOf& place_of, int shift) const {
    const float scale = power_of_2(shift);
    const int high = high_of_piece(W::share_column());
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      store_pairs(W::share_at(i, place_of), high, x[i], scale);
    }
  }
};
/// The shares of a chunk's rows.
template <typename G, Sweep kSweep>
struct ChunkShare {
  Share<Walk<G, kSweep>> band[2], own[2];
};

/// The factors of query features, weight * far_scale / norm, in the place of the norms; maxima of
/// factors, of their inverses and of the rows' dots.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void measure_numbers(const Walk<G, kSweep>& walk,
                                                const Weights<G>& weights) {
  using W = Walk<G, kSweep>;
  using Scales = typename W::Scales;
  const SweepArgs& args = walk.args;
  // All of a warp have the same field.
  const int token = threadIdx.x % G::kChunk, n = Scales::copier() / G::kChunk;
  const int tile = token / kBlockDim, row = token % kBlockDim;
  const bool live = walk.live >> token & 1;
  if (n < G::kMaps) {
    float& number = walk.numbers(kNorm + n, tile)[row];
    const float norm = has_row_sums(args) ? number : args.fixed_norm;
    // A dead row's norm may be 0.
    const float factor = live ? __fdividef(pick(weights.of, n) * args.far_scale, norm) : 0.f;
    number = factor;
    Scales::raise_maximum(walk.set(), kFactors + n, fabsf(factor));
    Scales::raise_maximum(walk.set(), kInverseFactors + n, fabsf(__fdividef(1.f, factor)));
  }
  if (n < G::kMaps || (n == G::kMaps && args.has_near)) {
    const float dot = live ? fabsf(walk.numbers(kDot<G> + n, tile)[row]) : 0.f;
    Scales::raise_maximum(walk.set(), kDots + n, dot);
  }
}
/// The shift of a map's dots.
template <typename G, Sweep kSweep>
__device__ __forceinline__ int dot_shift(const Walk<G, kSweep>& walk, int l) {
  return shift_for(walk.maximum(kDots + l));
}
/// The maps' dots of the chunk as pairs, those of two tokens together.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void split_dots(const Walk<G, kSweep>& walk) {
  const int copier = Walk<G, kSweep>::Scales::copier();
  const int token = copier % (G::kChunk / 2) * 2, l = copier / (G::kChunk / 2);
  if (l >= G::kMaps) return;
  const float* dots = walk.numbers(kDot<G> + l, token / kBlockDim) + token % kBlockDim;
  const float scale = power_of_2(dot_shift(walk, l));
  uint32_t high, low;
  split(high, low, walk.live >> token & 1 ? scale * dots[0] : 0.f,
        walk.live >> (token + 1) & 1 ? scale * dots[1] : 0.f);
  *reinterpret_cast<float2*>(shared_at(walk.dot_pairs(l) + token)) =
      make_float2(__uint_as_float(high), __uint_as_float(low));
}

/// A thread's share of the chunk's rows; their maxima.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void measure_chunk(ChunkShare<G, kSweep>& share,
                                              const Walk<G, kSweep>& walk,
                                              const Weights<G>& weights) {
  using W = Walk<G, kSweep>;
  using M = Memory<G, kSweep>;
  float largest[2 + M::kOwnTensors];
  static_assert(kBandRows == 0 && kOwnRows == 2);
#pragma unroll
  for (int which = 0; which < 2; ++which)
    largest[which] = share.band[which].load([&](int t) { return walk.tile(which, t); });
#pragma unroll
  for (int which = 0; which < M::kOwnTensors; ++which)
    largest[kOwnRows + which] =
        share.own[which].load([&](int t) { return W::own_area(which) + t * G::kTile; });
#pragma unroll
  for (int i = 0; i < 2 + M::kOwnTensors; ++i) W::Scales::raise_maximum(walk.set(), i, largest[i]);
  if constexpr (M::kOfQueries) measure_numbers(walk, weights);
}

/// The rows beside the first chunk: their maxima, as of the chunk before, and they themselves.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void split_halo(const Walk<G, kSweep>& walk) {
  using W = Walk<G, kSweep>;
  const int set = walk.set_beside();
  const auto place_of = [&](int which) {
    return [&walk, which](int t) { return walk.tile(which, W::kFirstBeside + t); };
  };
  Share<W, kHalo> share[2];
#pragma unroll
  for (int which = 0; which < 2; ++which)
    W::Scales::raise_maximum(set, kBandRows + which, share[which].load(place_of(which)));
  walk.place.meet_copiers();
  if constexpr (Memory<G, kSweep>::kOfQueries) {
    if (W::Scales::copier() < kHalo * kBlockDim) {
      const int tile = W::kFirstBeside + threadIdx.x % kWarpSize / kBlockDim,
                row = threadIdx.x % kBlockDim;
      const bool live = walk.live_bits(tile) >> row & 1;
      const float dot = walk.numbers(kDot<G> + G::kMaps, tile)[row];
      W::Scales::raise_maximum(set, kDots + G::kMaps, live ? fabsf(dot) : 0.f);
    }
  }
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    const int shift = shift_for(W::Scales::maximum(set, kBandRows + which));
    W::Scales::set_shift(set, kBandRows + which, shift);
    share[which].store(place_of(which), shift);
  }
}
/// The rows beside the chunk, split in the chunk before, get this chunk's shift, by all who walk.
/// Returns whether that changed anything.
template <typename G, Sweep kSweep>
__device__ __forceinline__ bool shift_halo(const Walk<G, kSweep>& walk, int which, int shift) {
  using W = Walk<G, kSweep>;
  const int before = W::Scales::shift(walk.set_beside(), kBandRows + which);
  if (shift == before) return false;
  const float scale = power_of_2(shift - before);
  const int high = high_of_piece(W::share_column());
#pragma unroll 1
  for (int i = 0; i < kHalo * W::kRowsOfTile; ++i) {
    const int row = W::share_at(i, [&](int t) { return walk.tile(which, W::kFirstBeside + t); });
    Piece x;
    load_pairs(x, row, high, scale);
    store_pairs(row, high, x, 1.f);
  }
  return true;
}
/// The shift of the walk's rows in a chunk, with those beside it: that of the chunk before, unless
/// this is the first or more than two bits would be lost, so that rows beside it seldom change.
template <typename G, Sweep kSweep>
__device__ __forceinline__ int band_shift(const Walk<G, kSweep>& walk, int which, bool first) {
  using Scales = typename Walk<G, kSweep>::Scales;
  const float largest = walk.maximum(kBandRows + which);
  if (!walk.args.has_near) return shift_for(largest);
  const int best = shift_for(fmaxf(largest, Scales::maximum(walk.set_beside(), kBandRows + which)));
  if (first) return best;
  const int before = Scales::shift(walk.set_beside(), kBandRows + which);
  return before <= best && best <= before + 2 ? before : best;
}

}  // namespace fmmformer::cuda::chunks_fp32
