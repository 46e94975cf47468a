// SPDX-License-Identifier: Apache-2.0
// Who does what, for heads of 16 or 32 channels in bf16 or fp32: a warp owns a strip of tokens.
//
// A thread block has a segment of one (batch entry, head); its warps cut the segment into strips of
// consecutive tiles of sixteen tokens. (Two-sided, all warps of a pair cut its live tiles.) A warp
// walks its strip alone: all feature maps and the band, with the states of all maps in its
// registers and its own rings of tiles in shared memory. Within a walk nobody waits for anybody.
// Warps meet before it, where a strip's state begins with the sums of others (sums.cuh), and after
// it, where gradients of weights are added up. Where a warp's registers do not hold all states, a
// team of warps walks the strip instead (teams.cuh).
#pragma once

#include <type_traits>

#include "attention/fmm/cuda/strips/launcher.cuh"
#include "attention/fmm/cuda/tile.cuh"
#include "attention/fmm/cuda/wide_fragment.cuh"

namespace fmmformer::cuda::strips {

/// What is known at compile time: Bf16 or Tf32x3, D = Dv = kDim, and the first kMaps of elu,
/// elu_flip, tanh1. kPlain: without dropout, and blend weights are equal for all channels of a
/// head. kUnit: feature rows are divided by their sum. kTeam: see teams.cuh.
template <typename Math_, int kDim_, int kMaps_, bool kPlain_, bool kUnit_, bool kTeam_ = false>
struct Shape {
  using Math = Math_;
  using Elem = typename Math::Elem;
  using Tile = const Elem*;                         // in shared memory, to load operands from
  static constexpr bool kWide = sizeof(Elem) == 4;  // fp32: operands are not rounded
  using Fragment = std::conditional_t<kWide, WideFragment, cuda::Fragment>;
  static constexpr bool kPlain = kPlain_, kUnit = kUnit_, kTeam = kTeam_;
  // Whether products are to make up for rounded operands: a weight for all channels is a long sum.
  static constexpr bool kCareful = kPlain && !kWide;
  static constexpr int kDim = kDim_, kMaps = kMaps_, kFields = kMaps + 1;
  static constexpr int kBlocks = kDim / kBlockDim;  // of channels
  static constexpr int kStride = kWide ? kDim : kDim + Bf16::kPad, kTile = kBlockDim * kStride;
  // Fields that one warp has, and maps of which it keeps the state.
  static constexpr int kOwnFields = kTeam ? 1 : kFields, kOwnMaps = kTeam ? 1 : kMaps;
  // Registers of a lane that hold one map's state: sums, and key sums.
  static constexpr int kSums = kBlocks * kBlocks * 8, kKeySums = kBlocks * 4;
  static constexpr int kState = kOwnMaps * (kSums + kKeySums);
};

template <typename G>
using ElemOf = typename G::Elem;
template <typename G>
using TeamOf = Shape<typename G::Math, G::kDim, G::kMaps, G::kPlain, G::kUnit, /*kTeam=*/true>;

template <typename G>
__device__ __forceinline__ bool drops(const SweepArgs& args) {
  return !G::kPlain && args.drop_below > 0;
}
template <typename G>
__device__ __forceinline__ bool uniform_weights(const SweepArgs& args) {
  return G::kPlain || args.uniform_weights;
}

/// The tiles [begin, end) that a warp walks, or a team: all warps of a block. Two-sided, these are
/// its share of the pair's live tiles instead of one of the segment's: see live_tiles.cuh.
struct Strip {
  int pair, b, h, segment, index, count;  // index: among the block's `count` strips
  int begin, end;
  int warp, warps;  // which warp of the block this is

  __device__ Strip(const SweepArgs& args, bool team) {
    pair = blockIdx.x / args.segments, segment = blockIdx.x % args.segments;
    b = pair / args.heads, h = pair % args.heads;
    // The same in every lane, as the compiler sees from the shuffle.
    warp = __shfl_sync(~0u, threadIdx.x / kWarpSize, 0), warps = blockDim.x / kWarpSize;
    index = team ? 0 : warp, count = team ? 1 : warps;
    const int first = segment_begin(args, segment) / kBlockDim;
    const int tiles = (segment_begin(args, segment + 1) + kBlockDim - 1) / kBlockDim - first;
    const int each = (tiles + count - 1) / count;
    begin = first + min(index * each, tiles), end = first + min((index + 1) * each, tiles);
  }
  __device__ bool last(const SweepArgs& args) const {
    return index == count - 1 && segment == args.segments - 1;
  }
  /// Of one of `fields` numbers that every row has, [pairs, fields, length].
  __device__ int64_t row_index(const SweepArgs& args, int fields, int field) const {
    return (int64_t(pair) * fields + field) * args.length;
  }
};

/// The i-th map that a warp sees to.
template <typename G>
__device__ __forceinline__ int own_map(const Strip& strip, int i) {
  return G::kTeam ? strip.warp : i;
}

/// Where things lie in a kernel's shared memory, in bytes; -1: there are none. Made on the host.
struct Layout {
  int weights;            // the block's: see Weights
  int live_tiles;         // the block's: see LiveTiles
  int fixed;              // the block's: see FixedSums
  int exchange;           // float [slots][state][32], over the warps' own memory: between walks
  int parts[2];           // a team's: see Parts
  int warps, warp_bytes;  // where the first warp's own memory begins; from one to the next
  int band[2], own[2];    // in a warp's: rings of tiles, and two tiles each of its own rows
  int numbers;            // see Tiles
  int number_rows;        // see Numbers
  int by_weight;          // see ByWeight
  int key_sums;           // of states that grow in a walk: see KeySums
  int weight_sums;        // float4 [fields][kDim / 16][32]: see WeightSums
  int bytes;
};

template <typename T>
__device__ __forceinline__ T* shared_at(int offset) {
  extern __shared__ __align__(16) unsigned char dynamic_memory[];
  return reinterpret_cast<T*>(dynamic_memory + offset);
}

}  // namespace fmmformer::cuda::strips
