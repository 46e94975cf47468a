// SPDX-License-Identifier: Apache-2.0
// Sixteen rows of results on their way to memory, and the sums for the gradients of blend weights.
#pragma once

#include "attention/fmm/cuda/strips/maps.cuh"
#include "attention/fmm/cuda/strips/tiles.cuh"

namespace fmmformer::cuda::strips {

/// Writes sixteen rows of out, dq, dk or dv by way of `stage`, a tile nobody needs any more. Zeros
/// for dead rows.
template <typename G>
__device__ __forceinline__ void write_stage(Rows<G>& to, const ElemOf<G>* stage, int tile,
                                            uint32_t live, int length, int direction) {
  using P = Pieces<G>;
  ElemOf<G>* next = to.piece();
#pragma unroll
  for (int i = 0; i < P::kRounds; ++i) {
    const int row = P::row() + i * P::kRowsAtOnce;
    uint4 piece = *reinterpret_cast<const uint4*>(stage + P::shared_offset(i));
    if (!(live >> row & 1)) piece = make_uint4(0, 0, 0, 0);
    if (tile * kBlockDim + row < length)
      *reinterpret_cast<uint4*>(next + i * P::kRowsAtOnce * to.view.row_stride) = piece;
  }
  to.skip(direction);
}
/// Zeros for sixteen dead rows.
template <typename G>
__device__ __forceinline__ void write_zeros(const Rows<G>& to, int tile, int length) {
  using P = Pieces<G>;
  ElemOf<G>* next = to.piece();
#pragma unroll
  for (int i = 0; i < P::kRounds; ++i) {
    const int row = P::row() + i * P::kRowsAtOnce;
    if (tile * kBlockDim + row < length)
      *reinterpret_cast<uint4*>(next + i * P::kRowsAtOnce * to.view.row_stride) =
          make_uint4(0, 0, 0, 0);
  }
}
template <typename G>
__device__ __forceinline__ void write_rows(Rows<G>& to, const Blocks<G>& rows, ElemOf<G>* stage,
                                           int tile, uint32_t live, int length, int direction) {
  __syncwarp();
#pragma unroll
  for (int b = 0; b < G::kBlocks; ++b) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      store_pair(stage + offset_of<G>(row_of(j % 2 * 2), b * kBlockDim + column_of(j / 2, 0)),
                 rows[b][j / 2][j % 2 * 2], rows[b][j / 2][j % 2 * 2 + 1]);
    }
  }
  __syncwarp();
  write_stage(to, stage, tile, live, length, direction);
}

/// A head's blend weights in shared memory, [fields][kDim], maps first: as they are, and rounded
/// where operands of products are.
template <typename G>
struct Weights {
  const float* all;
  bool uniform;  // equal for all channels

  __device__ Weights(const Layout& layout, const SweepArgs& args)
      : all(shared_at<float>(layout.weights)), uniform(uniform_weights<G>(args)) {}
  /// Bytes that both take.
  static constexpr int kBytes =
      G::kFields * G::kDim * (sizeof(float) + (G::kWide ? 0 : sizeof(ElemOf<G>)));

  __device__ const float* of(int field) const { return all + field * G::kDim; }
  __device__ __forceinline__ ElemOf<G>* operands() const {
    float* to = const_cast<float*>(all);
    return reinterpret_cast<ElemOf<G>*>(G::kWide ? to : to + G::kFields * G::kDim);
  }
  /// What products with weighed rows are to be multiplied by.
  __device__ __forceinline__ float factor(int field) const { return uniform ? of(field)[0] : 1.f; }
  /// Rows of v or grad_out, times the weight unless that is equal for all channels.
  __device__ __forceinline__ void weigh(Fragments<G>& rows, int field) const {
    if (uniform) return;
    scale_columns(rows, operands() + field * G::kDim);
  }
  /// Reads them from memory. A barrier must follow.
  __device__ void load(const SweepArgs& args, const Strip& strip) const {
    float* to = const_cast<float*>(all);
    for (int i = threadIdx.x; i < G::kFields * G::kDim; i += blockDim.x) {
      const int field = i / G::kDim, channel = i % G::kDim;
      to[i] = field == G::kMaps ? weight_value(args.near_weight, 0, strip.h, channel)
                                : weight_value(args.far_weight, field, strip.h, channel);
      if (!G::kWide) operands()[i] = ElemOf<G>(to[i]);
    }
  }
};

/// sum += weight * factor * rows, with a factor for rows g and g + 8.
template <typename G>
__device__ __forceinline__ void add_field(Blocks<G>& sum, const Blocks<G>& rows,
                                          const float (&factor)[2], const Weights<G>& weights,
                                          int field) {
  const float* weight = weights.of(field);
  if (weights.uniform) {
    const float both[2] = {factor[0] * weight[0], factor[1] * weight[0]};
#pragma unroll
    for (int i = 0; i < G::kBlocks * 8; ++i) {
      sum[i / 8][i / 4 % 2][i % 4] += both[i % 4 / 2] * rows[i / 8][i / 4 % 2][i % 4];
    }
    return;
  }
#pragma unroll
  for (int n = 0; n < G::kBlocks * 2; ++n) {
    const float2 w = *reinterpret_cast<const float2*>(weight + n * 8 + lane_id() % 4 * 2);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum[n / 2][n % 2][i] += (i % 2 ? w.y : w.x) * factor[i / 2] * rows[n / 2][n % 2][i];
    }
  }
}

/// Sums for the gradients of weights that differ by channel: over tokens of v_j * (gradient of v
/// before its weight). Every lane has its own, float4 [fields][kDim / 16][32] in its warp's memory;
/// a team's warps share one, a field each.
template <typename G>
struct WeightSums {
  float4* sums;  // or none

  __device__ WeightSums(const Layout& layout, const Strip& strip)
      : sums(layout.weight_sums < 0
                 ? nullptr
                 : shared_at<float4>(layout.warps + strip.index * layout.warp_bytes +
                                     layout.weight_sums)) {}
  __device__ __forceinline__ bool present() const { return !G::kPlain && sums; }
  __device__ void clear() const {
    if (!present()) return;
    for (int i = 0; i < G::kFields * G::kBlocks; ++i)
      sums[i * kWarpSize + lane_id()] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
  __device__ __forceinline__ void add(int field, const Blocks<G>& rows,
                                      const ElemOf<G>* v_tile) const {
    if (!present()) return;
    Fragments<G> v;
    load<G>(v, v_tile);
#pragma unroll
    for (int b = 0; b < G::kBlocks; ++b) {
      float4& at = sums[(field * G::kBlocks + b) * kWarpSize + lane_id()];
      float4 sum = at;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float low, high;
        pair_of(v[b], r, low, high);
        sum.x += low * rows[b][0][2 * r], sum.y += high * rows[b][0][2 * r + 1];
        pair_of(v[b], 2 + r, low, high);
        sum.z += low * rows[b][1][2 * r], sum.w += high * rows[b][1][2 * r + 1];
      }
      at = sum;
    }
  }
  /// The block's row of args.weight_sums. A barrier inside.
  __device__ void store(const Layout& layout, const SweepArgs& args) const {
    if (!present()) return;
    __syncthreads();
    for (int i = threadIdx.x; i < G::kFields * G::kDim; i += blockDim.x) {
      const int field = i / G::kDim, channel = i % G::kDim, c = channel % kBlockDim;
      if (field == G::kMaps && !args.has_near) continue;
      float sum = 0.f;
      for (int warp = 0; warp < (G::kTeam ? 1 : int(blockDim.x / kWarpSize)); ++warp) {
        const float* of_warp =
            shared_at<float>(layout.warps + warp * layout.warp_bytes + layout.weight_sums);
        const int at = (field * G::kBlocks + channel / kBlockDim) * kWarpSize;
        for (int g = 0; g < 8; ++g) {
          sum += of_warp[(at + g * 4 + c % 8 / 2) * 4 + c / 8 * 2 + c % 2];
        }
      }
      const int64_t row = blockIdx.x * int64_t(args.all_maps + 1) + field;
      args.weight_sums[row * args.all_channels + channel] = sum;
    }
  }
};

/// A warp's sums for weights that are equal for all channels, a field and row g each: [fields][8]
/// in its memory, where registers are needed for more. A team has a warp for each field.
template <typename G>
struct ByWeight {
  static constexpr int kRows = kWarpSize / 4, kBytes = G::kFields * kRows * sizeof(float);
  float* sums;  // the lane's of its first field

  __device__ ByWeight(const Layout& layout, const Strip& strip)
      : sums(of_strip(layout, strip.index) + (G::kTeam ? strip.warp * kRows : 0) + lane_id() / 4) {
#pragma unroll
    for (int field = 0; field < G::kOwnFields; ++field) sums[field * kRows] = 0.f;
  }
  static __device__ float* of_strip(const Layout& layout, int index) {
    return shared_at<float>(layout.warps + index * layout.warp_bytes + layout.by_weight);
  }
  /// `x` is the same for all lanes of a row.
  __device__ __forceinline__ void add(int field, float x) const {
    if (lane_id() % 4 == 0) sums[field * kRows] += x;
  }
};

/// Gradients of weights that are equal for all channels, from all warps' ByWeight, into the first
/// channel's place in args.weight_sums; the others become zeros. A barrier inside.
template <typename G>
__device__ void store_uniform_weight_sums(const Layout& layout, const SweepArgs& args,
                                          const Strip& strip) {
  __syncthreads();
  for (int i = threadIdx.x; i < G::kFields * G::kDim; i += blockDim.x) {
    const int field = i / G::kDim, channel = i % G::kDim;
    if (field == G::kMaps && !args.has_near) continue;
    float sum = 0.f;
    for (int s = 0; channel == 0 && s < strip.count; ++s) {
      const float* rows = ByWeight<G>::of_strip(layout, s) + field * ByWeight<G>::kRows;
#pragma unroll
      for (int row = 0; row < ByWeight<G>::kRows; ++row) sum += rows[row];
    }
    args.weight_sums[(blockIdx.x * int64_t(args.all_maps + 1) + field) * args.all_channels +
                     channel] = sum;
  }
}

}  // namespace fmmformer::cuda::strips
