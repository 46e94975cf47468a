// SPDX-License-Identifier: Apache-2.0
// Sums over the tokens before a warp's, or after them, of one map or several: each warp stores
// those of its own tokens, register by register, and all threads add them up along the sequence.
#pragma once

#include "attention/fmm/cuda/whole/sequence.cuh"

namespace fmmformer::cuda::whole {

enum class Scan { kBefore, kAfter };

/// Sums over a warp's tokens: of (one row) x (another), with the channels of the first as rows; and
/// of feature rows times a number each, a column of which every lane holds its rows.
template <typename G>
struct OwnSums {
  Block sums[G::kBlocks][G::kBlocks];
  float rows[G::kBlocks][4];

  /// Adds a tile, the warp's first one or a later one. Both come turned.
  __device__ __forceinline__ void add(bool first, const Fragments<G>& left,
                                      const Fragments<G>& right) {
#pragma unroll
    for (int i = 0; i < G::kBlocks * G::kBlocks; ++i) {
      Block& to = sums[i / G::kBlocks][i % G::kBlocks];
      if (first) begin_product(to, left[i / G::kBlocks], right[i % G::kBlocks]);
      if (!first) add_product(to, left[i / G::kBlocks], right[i % G::kBlocks]);
    }
  }
  __device__ __forceinline__ void store_rows(float* to) const {
    if (lane_id() % 4 != 0) return;
    to += lane_id() / 4;
#pragma unroll
    for (int s = 0; s < G::kBlocks; ++s)
      to[s * kBlockDim] = rows[s][0], to[s * kBlockDim + 8] = rows[s][2];
  }
  /// Numbers of tokens 2t and the next, 8 + 2t and the next.
  __device__ __forceinline__ void add_rows(bool first, const Fragments<G>& turned_f,
                                           const Bf16::B& numbers) {
#pragma unroll
    for (int s = 0; s < G::kBlocks; ++s) {
      if (first) Bf16::begin(rows[s], turned_f[s], numbers);
      if (!first) Bf16::multiply(rows[s], turned_f[s], numbers);
    }
  }
};

template <typename G>
struct States {
  float* first;  // of the block's first warp
  float* own;    // of this one, [maps][kStateSize]

  __device__ explicit States(const Sequence<G>& at)
      : first(shared_at<float>(G::kWarps + G::kStates)), own(at.template own<float>(G::kStates)) {}

  __device__ __forceinline__ void store(int index, const OwnSums<G>& own) const {
    __syncwarp();  // all lanes have read what was there
#pragma unroll
    for (int i = 0; i < G::kSums / 4; ++i) {
      const float* from = own.sums[i / 2 / G::kBlocks][i / 2 % G::kBlocks][i % 2];
      *quarter(index, i) = make_float4(from[0], from[1], from[2], from[3]);
    }
    own.store_rows(key_sums(index).sums);
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

  /// Of the warp's first tile alone; see far_query.
  __device__ __forceinline__ KeySums<G> first_rows(int index) const {
    return {own - (G::kStates - G::kFirstRows) / 4 + index * G::kDim};
  }

  /// Every warp's sums become those of the warps before it, or after it; `total(i, sum)` receives
  /// the sums over all, kWidth numbers from number i on. Barriers before and after.
  template <Scan kScan, typename Total>
  __device__ __forceinline__ void scan(int warps, const Total& total) const {
    constexpr int kWidth = 4, kApart = G::kWarpBytes / 4;
    wait_for_copies();  // of rows that nobody has needed so far
    __syncthreads();
    for (int i = threadIdx.x * kWidth; i < G::kMaps * G::kStateSize; i += blockDim.x * kWidth) {
      float sum[kWidth] = {};
      constexpr int kAhead = 4;
      float* at = first + i + (kScan == Scan::kBefore ? 0 : (warps - 1) * kApart);
      constexpr int kStep = kScan == Scan::kBefore ? kApart : -kApart;
#pragma unroll 1
      for (int left = warps; left > 0; left -= kAhead, at += kAhead * kStep) {
        float4 x[kAhead];
#pragma unroll
        for (int s = 0; s < kAhead; ++s)
          x[s] = s < left ? *reinterpret_cast<const float4*>(at + s * kStep)
                          : make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
        for (int s = 0; s < kAhead; ++s) {
          if (s < left)
            *reinterpret_cast<float4*>(at + s * kStep) =
                make_float4(sum[0], sum[1], sum[2], sum[3]);
          sum[0] += x[s].x, sum[1] += x[s].y, sum[2] += x[s].z, sum[3] += x[s].w;
        }
      }
      total(i, sum);
    }
    __syncthreads();
  }
  template <Scan kScan>
  __device__ __forceinline__ void scan(int warps) const {
    scan<kScan>(warps, [](int, const auto&) {});
  }

 private:
  __device__ __forceinline__ float4* quarter(int index, int i) const {
    return reinterpret_cast<float4*>(own + index * G::kStateSize) + i * kWarpSize + lane_id();
  }
};

}  // namespace fmmformer::cuda::whole
