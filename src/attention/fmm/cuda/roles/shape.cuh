// SPDX-License-Identifier: Apache-2.0
// Who does what in a thread block, for heads of up to 128 channels in bf16.
//
// A thread block walks a segment of one (batch entry, head) in steps of sixteen tokens. Each of its
// warps has a role: the far field of one feature map, for a part of its channels (and of v's, a
// slice), whose state it holds in registers; or the near field, for a slice of the result. All
// roles read the same tiles in shared memory, and each leaves its part of the step's result there;
// after a barrier all warps together add the parts up and write them. The next step's tiles are
// under way meanwhile.
#pragma once

#include "attention/fmm/cuda/fragment.cuh"
#include "attention/fmm/cuda/tile.cuh"

namespace fmmformer::cuda::roles {

constexpr int kResultPad = 8;  // of a row of results: four rows then lie in different banks

/// What is known at compile time. D is padded to kKeyDim and Dv to kValueDim; the padding holds
/// zeros. kPlain: nothing is padded, every row starts at a multiple of sixteen bytes, there is one
/// pass, and the band fits the ring of tiles; kernels for that are a good deal shorter.
template <int kDim, bool kPlain_>
struct Shape {
  using Math = Bf16;
  using Elem = Bf16::Elem;
  static constexpr bool kPlain = kPlain_;
  static constexpr int kRows = kBlockDim;  // of a step
  static constexpr int kKeyDim = kDim, kValueDim = kDim;
  static constexpr int kKeyStride = kKeyDim + Math::kPad, kValueStride = kValueDim + Math::kPad;
  static constexpr int kKeyBlocks = kKeyDim / kBlockDim, kValueBlocks = kValueDim / kBlockDim;
  // A far role's part of the feature channels: as much of the state as registers hold.
  static constexpr int kPartDim = kKeyDim < 32 ? kKeyDim : 32;
  static constexpr int kPartBlocks = kPartDim / kBlockDim, kParts = kKeyDim / kPartDim;
  // Its part of v's channels, and the near roles' of all that they make.
  static constexpr int kSlices = kDim <= 64 ? 1 : kDim / 64;
  static constexpr int kSliceDim = kValueDim / kSlices, kSliceBlocks = kSliceDim / kBlockDim;
  static constexpr int kMostMaps = kDim <= 64 ? kMapsAtOnce : 2;
  static constexpr int kMostThreads = (kMostMaps * kParts + 1) * kSlices * kWarpSize;
  // Blocks that registers are kept free for; a two-sided state is fixed and takes half of them.
  static constexpr int kBlocksAtOnce = kDim <= 16 ? 5 : kDim <= 32 ? 4 : kDim <= 64 ? 2 : 1;
  static constexpr int kFixedBlocksAtOnce = kDim <= 16 ? 6 : kDim <= 32 ? 5 : kDim <= 64 ? 2 : 1;
  // Results of a step wait in one of so many buffers; a single one costs a second barrier.
  static constexpr int kResultBuffers = kDim <= 16 ? 2 : 1;
};

/// This warp's role.
struct Role {
  bool far, near;
  int map;    // of the pass
  int part;   // of the feature channels
  int slice;  // of v's channels; of a near role, of q's and k's too
  int index;  // of the warp: [map][part][slice], then the near roles

  template <typename G>
  static __host__ __device__ int parts(const SweepArgs& args) {
    return G::kPlain ? G::kParts : (args.head_dim + G::kPartDim - 1) / G::kPartDim;
  }
  template <typename G>
  static __host__ __device__ int far_count(const SweepArgs& args) {
    return args.maps * parts<G>(args) * G::kSlices;
  }
  template <typename G>
  static __host__ __device__ int count(const SweepArgs& args) {
    return far_count<G>(args) + (args.has_near ? G::kSlices : 0);
  }
  /// Results with v's channels: one of each map's parts, then the near field's; slices lie side by
  /// side in them.
  template <typename G>
  static __host__ __device__ int value_results(const SweepArgs& args) {
    return args.maps * parts<G>(args) + (args.has_near ? 1 : 0);
  }
  /// ... and with q's or k's: here the parts lie side by side, and every slice has its own.
  template <typename G>
  static __host__ __device__ int key_results(const SweepArgs& args) {
    return args.maps * G::kSlices + (args.has_near ? 1 : 0);
  }
  /// Warps of a block: at least two, for loads and results; one may have no role.
  template <typename G>
  static __host__ __device__ int warps(const SweepArgs& args) {
    return count<G>(args) < 2 ? 2 : count<G>(args);
  }
  template <typename G>
  static __device__ Role of_this_warp(const SweepArgs& args) {
    // The same in every lane, as the compiler sees from the shuffle.
    const int index = __shfl_sync(~0u, threadIdx.x / kWarpSize, 0), of_map = parts<G>(args);
    const int far = far_count<G>(args), in_map = index % (of_map * G::kSlices);
    return {index < far,
            index >= far && index < count<G>(args),
            index / (of_map * G::kSlices),
            in_map / G::kSlices,
            index % G::kSlices,
            index};
  }
  /// Speaks for its map, where all roles of the map know the same.
  __device__ bool leads() const { return part == 0 && slice == 0; }
};

template <typename G>
__device__ __forceinline__ int head_dim(const SweepArgs& args) {
  return G::kPlain ? G::kKeyDim : args.head_dim;
}
template <typename G>
__device__ __forceinline__ int value_dim(const SweepArgs& args) {
  return G::kPlain ? G::kValueDim : args.value_dim;
}

/// Where things lie in a kernel's shared memory, in bytes; -1: there are none. Made on the host.
struct Layout {
  int band[2], own[2];       // rings of tiles
  int live, numbers, stage;  // see Tiles
  int slots, before, after;  // of the band's ring: its size, tiles kept on either side
  int rows;                  // Rows [4]: what the tiles are loaded from
  int written;               // Rows [2]: and where results go
  int weights;               // float [fields][kValueDim]: every map, then near
  int weight_sums;           // float4 [fields][threads]
  int key_rows, value_rows;  // results of every map, then near; of every role
  int exchanges;             // see FarStep
  int buffer;                // from one step's results to the next's
  int bytes;
};

template <typename T>
__device__ __forceinline__ T* shared_at(int offset) {
  extern __shared__ __align__(16) unsigned char dynamic_memory[];
  return reinterpret_cast<T*>(dynamic_memory + offset);
}

}  // namespace fmmformer::cuda::roles
