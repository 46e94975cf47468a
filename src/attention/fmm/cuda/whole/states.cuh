// SPDX-License-Identifier: Apache-2.0
// Sums over the tokens before a tile, or after it, of one map or several: each warp stores those of
// its own tile, register by register, and all threads add them up along the round's tiles.
#pragma once

#include "attention/fmm/cuda/whole/sequence.cuh"

namespace fmmformer::cuda::whole {

enum class Scan { kBefore, kAfter };

/// Sums over a tile's tokens: of (one row) x (another), with the channels of the first as rows; and
/// of feature rows times a number each, of which every lane holds its rows' in all columns.
template <typename G>
struct OwnSums {
  Block sums[G::kBlocks][G::kBlocks];
  float rows[G::kBlocks][4];

  /// Both come turned.
  __device__ __forceinline__ void make(const Fragments<G>& left, const Fragments<G>& right) {
#pragma unroll
    for (int i = 0; i < G::kBlocks * G::kBlocks; ++i)
      begin_product(sums[i / G::kBlocks][i % G::kBlocks], left[i / G::kBlocks],
                    right[i % G::kBlocks]);
  }
  /// Numbers of tokens 2t and the next, 8 + 2t and the next.
  __device__ __forceinline__ void make_rows(const Fragments<G>& turned_f, const Bf16::B& numbers) {
#pragma unroll
    for (int s = 0; s < G::kBlocks; ++s) Bf16::begin(rows[s], turned_f[s], numbers);
  }
};

template <typename G>
struct States {
  float* first;  // of the block's first warp
  float* own;    // of this one, [maps at a time][kStateSize]

  __device__ explicit States(const Sequence<G>& at)
      : first(shared_at<float>(G::kWarps + G::kStates)), own(at.template own<float>(G::kStates)) {}

  __device__ __forceinline__ void store(int index, const OwnSums<G>& of_tile) const {
#pragma unroll
    for (int i = 0; i < G::kSums / 4; ++i) {
      const float* from = of_tile.sums[i / 2 / G::kBlocks][i / 2 % G::kBlocks][i % 2];
      *quarter(index, i) = make_float4(from[0], from[1], from[2], from[3]);
    }
    if (lane_id() % 4 != 0) return;
    float* to = key_sums(index).sums + lane_id() / 4;
#pragma unroll
    for (int s = 0; s < G::kBlocks; ++s)
      to[s * kBlockDim] = of_tile.rows[s][0], to[s * kBlockDim + 8] = of_tile.rows[s][2];
  }
  /// Block i of a state, as an operand.
  __device__ __forceinline__ Fragment operand(int index, int i) const {
    const float4 low = *quarter(index, 2 * i), high = *quarter(index, 2 * i + 1);
    return {{Bf16::pack(low.x, low.y), Bf16::pack(low.z, low.w), Bf16::pack(high.x, high.y),
             Bf16::pack(high.z, high.w)}};
  }
  __device__ __forceinline__ KeySums<G> key_sums(int index) const {
    return {own + index * G::kStateSize + G::kImage};
  }

  /// Every warp's sums become those of the warps before it, or after it, and of what the round
  /// begins with, `start`; the sums over all go to `total`. Either may be missing. Barriers before
  /// and after.
  template <Scan kScan, int kCount>
  __device__ __forceinline__ void scan(int warps, const float* start, float* total) const {
    constexpr int kApart = G::kWarpBytes / 4, kStep = kScan == Scan::kBefore ? kApart : -kApart;
    constexpr int kAhead = 4;
    __syncthreads();
    for (int i = threadIdx.x * 4; i < kCount * G::kStateSize; i += blockDim.x * 4) {
      float4 sum = start ? *reinterpret_cast<const float4*>(start + i)
                         : make_float4(0.f, 0.f, 0.f, 0.f);
      float* at = first + i + (kScan == Scan::kBefore ? 0 : (warps - 1) * kApart);
#pragma unroll 1
      for (int left = warps; left > 0; left -= kAhead, at += kAhead * kStep) {
        float4 x[kAhead];
#pragma unroll
        for (int s = 0; s < kAhead; ++s)
          if (s < left) x[s] = *reinterpret_cast<const float4*>(at + s * kStep);
#pragma unroll
        for (int s = 0; s < kAhead; ++s) {
          if (s >= left) break;
          *reinterpret_cast<float4*>(at + s * kStep) = sum;
          sum.x += x[s].x, sum.y += x[s].y, sum.z += x[s].z, sum.w += x[s].w;
        }
      }
      if (total) *reinterpret_cast<float4*>(total + i) = sum;
    }
    __syncthreads();
  }

 private:
  __device__ __forceinline__ float4* quarter(int index, int i) const {
    return reinterpret_cast<float4*>(own + index * G::kStateSize) + i * kWarpSize + lane_id();
  }
};

}  // namespace fmmformer::cuda::whole
