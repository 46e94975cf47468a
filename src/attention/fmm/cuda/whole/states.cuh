// SPDX-License-Identifier: Apache-2.0
// Sums over the tokens before a warp's, or after them, of all maps: each warp stores
// those of its own tokens, register by register, and all threads add them up along the sequence.
#pragma once

#include "attention/fmm/cuda/whole/sequence.cuh"

namespace fmmformer::cuda::whole {

enum class Scan { kBefore, kAfter };

/// Sums over a warp's tokens: of (one row) x (another), with the channels of the first as rows; and
/// of feature rows times a number each, with channels as rows and all columns the same.
template <typename G>
struct OwnSums {
  Block sums;
  float rows[4];

  /// Adds a tile, the warp's first one or a later one. Both come turned.
  __device__ __forceinline__ void add(bool first, const Fragments<G>& left,
                                      const Fragments<G>& right) {
    if (first) begin_product(sums, left[0], right[0]);
    if (!first) add_product(sums, left[0], right[0]);
  }
  __device__ __forceinline__ void store_rows(float* to) const {
    if (lane_id() % 4 != 0) return;
    to[lane_id() / 4] = rows[0], to[lane_id() / 4 + 8] = rows[2];
  }
  /// Numbers of tokens 2t and the next, 8 + 2t and the next.
  __device__ __forceinline__ void add_rows(bool first, const Fragments<G>& turned_f,
                                           const Bf16::B& numbers) {
    if (first) Bf16::begin(rows, turned_f[0], numbers);
    if (!first) Bf16::multiply(rows, turned_f[0], numbers);
  }
};

template <typename G>
struct States {
  float* first;  // of the block's first warp
  float* own;    // of this one, [maps][kStateSize]

  __device__ explicit States(const Sequence<G>& at)
      : first(shared_at<float>(G::kWarps + G::kStates)), own(at.template own<float>(G::kStates)) {}

  __device__ __forceinline__ void store(int map, const OwnSums<G>& of_warp) const {
    __syncwarp();  // all lanes have read what was there
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float* from = of_warp.sums[n];
      *half(map, n) = make_float4(from[0], from[1], from[2], from[3]);
    }
    of_warp.store_rows(key_sums(map).sums);
  }
  __device__ __forceinline__ Fragment operand(int map) const {
    const float4 low = *half(map, 0), high = *half(map, 1);
    return {{Bf16::pack(low.x, low.y), Bf16::pack(low.z, low.w), Bf16::pack(high.x, high.y),
             Bf16::pack(high.z, high.w)}};
  }
  __device__ __forceinline__ KeySums<G> key_sums(int map) const {
    return {own + map * G::kStateSize + G::kImage};
  }

  /// Of the warp's first tile alone; see far_query.
  __device__ __forceinline__ KeySums<G> first_rows(int map) const {
    return {own - (G::kStates - G::kFirstRows) / 4 + map * kDim};
  }

  /// Every warp's sums become those of the warps before it, or after it; `total(i, sum)` receives
  /// the sums over all, kWidth numbers from number i on. A barrier must come before; after it, one
  /// is here.
  template <Scan kScan, typename Total>
  __device__ __forceinline__ void scan(int warps, const Total& total) const {
    constexpr int kWidth = 4, kApart = G::kWarpBytes / 4;
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
  /// Eight columns of a state's block: the lane's.
  __device__ __forceinline__ float4* half(int map, int n) const {
    return reinterpret_cast<float4*>(own + map * G::kStateSize) + n * kWarpSize + lane_id();
  }
};

}  // namespace fmmformer::cuda::whole
