// SPDX-License-Identifier: Apache-2.0
// A step's results: what the roles left in shared memory, added up by all warps and written.
#pragma once

#include "attention/fmm/cuda/roles/tiles.cuh"

namespace fmmformer::cuda::roles {

/// Rows [16][kDim + kResultPad] from each of `count` roles.
template <int kDim>
struct Results {
  static constexpr int kStride = kDim + kResultPad, kSize = kBlockDim * kStride;
  float* parts;
  int count;

  __device__ __forceinline__ float* of(int index) const { return parts + index * kSize; }
  __device__ __forceinline__ float4 at(int index, int row, int channel) const {
    return *reinterpret_cast<const float4*>(of(index) + row * kStride + channel);
  }
};

/// body(row, channel) for groups of four channels of the sixteen rows; a thread always meets the
/// same channels.
template <int kDim, typename Body>
__device__ __forceinline__ void each_four(const Body& body) {
  constexpr int kAcross = kDim / 4;
  const int channel = threadIdx.x % kAcross * 4;
#pragma unroll 1
  for (int row = threadIdx.x / kAcross; row < kBlockDim; row += blockDim.x / kAcross) {
    body(row, channel);
  }
}

/// Writes four channels of a token's row; zeros for a dead one.
template <typename G>
__device__ __forceinline__ void store_four(const float4& sum, const Rows& rows,
                                           const SweepArgs& args, const Place<G>& place, int token,
                                           int channel, bool live, const Partial& partial) {
  if (token >= args.length || (!G::kPlain && channel >= rows.dim)) return;
  Elem* to = rows.data + token * rows.stride + channel;
  uint2 both = make_uint2(0, 0);
  if constexpr (G::kPlain) {
    if (live) both = make_uint2(Bf16::pack(sum.x, sum.y), Bf16::pack(sum.z, sum.w));
    *reinterpret_cast<uint2*>(to) = both;
    return;
  }
  float x[4] = {sum.x, sum.y, sum.z, sum.w};
  if (partial.sums) {
    float* at = partial.sums +
                ((int64_t(place.b) * args.length + token) * args.heads + place.h) * rows.dim +
                channel;
    for (int i = 0; i < 4 && channel + i < rows.dim; ++i) {
      if (!partial.first) x[i] += at[i];
      if (!partial.last) at[i] = x[i];
    }
    if (!partial.last) return;
  }
  for (int i = 0; i < 4 && channel + i < rows.dim; ++i) to[i] = Elem(live ? x[i] : 0.f);
}

__device__ __forceinline__ void add_four(float4& sum, const float4& x) {
  sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
}
__device__ __forceinline__ void add_four(float4& sum, const float4& x, const float4& weight) {
  sum.x += weight.x * x.x, sum.y += weight.y * x.y, sum.z += weight.z * x.z,
      sum.w += weight.w * x.w;
}

/// The plain sum: gradients of q and k.
template <typename G>
__device__ __forceinline__ void write_key_rows(const Results<G::kKeyDim>& results, const Rows& rows,
                                               const SweepArgs& args, const Place<G>& place,
                                               int first, uint32_t live, const Partial& partial) {
  each_four<G::kKeyDim>([&](int row, int channel) {
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int i = 0; i < G::kMostMaps * G::kSlices + 1; ++i) {
      if (i < results.count) add_four(sum, results.at(i, row, channel));
    }
    store_four(sum, rows, args, place, first + row, channel, live >> row & 1, partial);
  });
}

/// The sum with the blend weights [fields][kValueDim]: the output, and the gradient of v. Of every
/// far field there are `parts`. `visit` sees each field before it is weighted.
template <typename G, typename Visit>
__device__ __forceinline__ void write_value_rows(const Results<G::kValueDim>& results, int parts,
                                                 const float* weights, const Rows& rows,
                                                 const SweepArgs& args, const Place<G>& place,
                                                 int first, uint32_t live, const Partial& partial,
                                                 const Visit& visit) {
  each_four<G::kValueDim>([&](int row, int channel) {
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int i = 0; i < G::kMostMaps + 1; ++i) {
      if (i * parts >= results.count) break;
      float4 field = results.at(i * parts, row, channel);
      if (G::kParts > 1 && i < args.maps) {
        for (int part = 1; part < parts; ++part)
          add_four(field, results.at(i * parts + part, row, channel));
      }
      add_four(sum, field, *reinterpret_cast<const float4*>(weights + i * G::kValueDim + channel));
      visit(i, row, channel, field);
    }
    store_four(sum, rows, args, place, first + row, channel, live >> row & 1, partial);
  });
}

/// Sums for the gradients of the blend weights: over tokens of v_j * (gradient of v before its
/// weight), by channel. Every thread has its own, [count][threads].
struct WeightSums {
  float4* sums;  // or none
  int count;

  __device__ void clear() const {
    if (!sums) return;
    for (int i = 0; i < count; ++i)
      sums[i * blockDim.x + threadIdx.x] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
  __device__ __forceinline__ void add(int index, const float4& part, const Elem* v) const {
    float4& sum = sums[index * blockDim.x + threadIdx.x];
    const uint2 both = *reinterpret_cast<const uint2*>(v);
    float4 values;
    Bf16::unpack(both.x, values.x, values.y), Bf16::unpack(both.y, values.z, values.w);
    add_four(sum, part, values);
  }
  /// The block's row of args.weight_sums, after a barrier.
  template <typename G>
  __device__ void store(const SweepArgs& args) const {
    constexpr int kAcross = G::kValueDim / 4;
    for (int i = threadIdx.x; i < count * G::kValueDim; i += blockDim.x) {
      const int index = i / G::kValueDim, channel = i % G::kValueDim;
      if (channel >= args.value_dim) continue;
      float sum = 0.f;
      for (int thread = channel / 4; thread < blockDim.x; thread += kAcross) {
        sum += reinterpret_cast<const float*>(sums + index * blockDim.x + thread)[channel % 4];
      }
      const int64_t row = blockIdx.x * int64_t(args.all_maps + 1) +
                          (index == args.maps ? args.all_maps : args.first_map + index);
      args.weight_sums[row * args.all_channels + args.first_channel + channel] = sum;
    }
  }
};

}  // namespace fmmformer::cuda::roles
