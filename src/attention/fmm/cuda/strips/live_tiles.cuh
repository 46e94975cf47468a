// SPDX-License-Identifier: Apache-2.0
// Which tiles of a sequence are worth a walk: those from the first live token to the last.
//
// Two-sided sweeps share them out among all warps of a pair, whatever block a warp is in. With
// strips of equal length instead, those of a batch's padding would have nothing to do, and the
// multiprocessors that hold them neither.
#pragma once

#include "attention/fmm/cuda/strips/shape.cuh"

namespace fmmformer::cuda::strips {

/// Blocks look through the whole mask of their sequence. Beyond this length it would no longer be
/// little beside their own rows, and all tiles count as live.
constexpr int kLongestSearch = 1 << 15;

struct TileRange {
  int begin, end;

  __device__ int size() const { return end - begin; }
  /// The share of one of `count` warps.
  __device__ TileRange share(int index, int count) const {
    return {begin + static_cast<int>(int64_t(index) * size() / count),
            begin + static_cast<int>(int64_t(index + 1) * size() / count)};
  }
};

/// Every warp looks through some tiles of the mask.
struct LiveTiles {
  TileRange* found;  // [warps] in shared memory

  static constexpr int kBytes = kMostInCluster * sizeof(TileRange);
  static __device__ bool searches(const SweepArgs& args) {
    return args.token_mask && args.length <= kLongestSearch;
  }

  __device__ explicit LiveTiles(const Layout& layout)
      : found(shared_at<TileRange>(layout.live_tiles)) {}
  /// A barrier must follow before range().
  __device__ void search(const SweepArgs& args, const Strip& strip) const {
    if (!searches(args)) return;
    const uint8_t* mask =
        reinterpret_cast<const uint8_t*>(args.token_mask) + int64_t(strip.b) * args.length;
    const bool aligned = (reinterpret_cast<uintptr_t>(mask) | args.length) % kBlockDim == 0;
    const int tiles = tiles_of(args);
    TileRange mine = {tiles, 0};
    for (int tile = threadIdx.x; tile < tiles; tile += blockDim.x) {
      if (!has_live(mask, tile, args.length, aligned)) continue;
      mine = {min(mine.begin, tile), tile + 1};
    }
    mine = {__reduce_min_sync(~0u, mine.begin), __reduce_max_sync(~0u, mine.end)};
    if (lane_id() == 0) found[strip.warp] = mine;
  }
  /// All tiles where there is no mask; none, at 0, where no token is live.
  __device__ TileRange range(const SweepArgs& args, const Strip& strip) const {
    const int tiles = tiles_of(args);
    if (!searches(args)) return {0, tiles};
    TileRange all = {tiles, 0};
    for (int warp = 0; warp < strip.warps; ++warp)
      all = {min(all.begin, found[warp].begin), max(all.end, found[warp].end)};
    return {min(all.begin, all.end), all.end};
  }
  static __device__ int tiles_of(const SweepArgs& args) {
    return (args.length + kBlockDim - 1) / kBlockDim;
  }

 private:
  static __device__ bool has_live(const uint8_t* mask, int tile, int length, bool aligned) {
    if (aligned) {
      const uint4 tokens = reinterpret_cast<const uint4*>(mask)[tile];
      return (tokens.x | tokens.y | tokens.z | tokens.w) != 0;
    }
    bool live = false;
    for (int token = tile * kBlockDim; token < min((tile + 1) * kBlockDim, length); ++token)
      live |= mask[token] != 0;
    return live;
  }
};

}  // namespace fmmformer::cuda::strips
