// SPDX-License-Identifier: Apache-2.0
// The four warps that feed those who walk. While these are at a chunk's far fields, a feeder copies
// its sixteen rows of the next, makes them pairs and draws dropout's bits for them; while they are
// at the near field, it makes features and shows the state. So walkers need no registers for a
// state, nobody waits for memory, and schedulers have more warps to choose from.
#pragma once

#include "attention/fmm/cuda/dropout.cuh"
#include "attention/fmm/cuda/narrow_fp32/features.cuh"
#include "attention/fmm/cuda/narrow_fp32/state.cuh"
#include "attention/fmm/cuda/registers.cuh"

namespace fmmformer::cuda::narrow_fp32 {

template <typename G>
struct Feeder {
  Sequence<G>& at;
  const View &first, &second;  // of the band
  const View &own, &second_own;
  uint64_t seed;

  __device__ Feeder(Sequence<G>& at, const View& first, const View& second, const View& own,
                    const View& second_own)
      : at(at), first(first), second(second), own(own), second_own(second_own) {
    // The same in every lane, as the compiler sees from the shuffle.
    seed = G::kDrops ? __shfl_sync(~0u, dropout_seed(at.args), 0) : 0;
  }
  /// All chunks of a walk in the direction of `step`, the first being at hand.
  __device__ __forceinline__ void feed(int step) {
    if (!G::kOfKeys && at.warp >= 2) {  // zeros, before the sequence
      at.copy_band(-1, first, second);
      wait_for_copies();
      __syncwarp();
      at.split_band(-1);
    }
    begin_to_copy(0);
    prepare(0);
    State<G> state;
#pragma unroll 1
    for (int left = at.chunks - 1; left >= 0; --left) {
      at.forget();
      if constexpr (G::kOfKeys) {
        show_queries(at);
        at.meet_feeders();  // the state's power of two depends on theirs
        state.show(at);
        at.leave_features();
      } else {
        state.show(at);
        show_keys(at);
        at.leave_features();
        at.meet_feeders();
      }
      if (left == 0 && !keeps_state()) break;
      if (left > 0) at.await_halo(), begin_to_copy(step);
      state.add(at);
      if (left == 0) break;
      prepare(step);
      at.chunk += step;
    }
    if (keeps_state()) state.store(at);
  }

 private:
  /// Whether the state after the last token is wanted.
  __device__ __forceinline__ bool keeps_state() const { return G::kForward && at.args.made.sums; }
  /// The chunk `offset` from the one at hand.
  __device__ __forceinline__ void begin_to_copy(int offset) const {
    at.copy_band(offset, first, second), at.copy_own(offset, own, second_own);
  }
  __device__ __forceinline__ void prepare(int offset) const {
    if (G::kDrops && !G::kOfKeys) at.bits(offset) = draw(at.tile() + offset * kTiles);
    wait_for_copies();
    __syncwarp();
    at.split_band(offset), at.measure_own(offset);
    show_to_warpgroup();
    meet_block();
  }
  /// Which elements are kept of what the rows of a tile see: bit group * 8 + i, i as in a Block.
  __device__ __forceinline__ uint32_t draw(int tile) const {
    PhiloxBlock draws[kGroups];
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
      draws[group] = lane_counter(tile * kBlockDim, (tile - 2 + group) * kBlockDim, at.pair,
                                  static_cast<uint32_t>(lane_id()));
    philox_blocks(draws, seed);
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < kGroups * 8; ++i) {
      const uint32_t word = draws[i / 8].word[i % 4 / 2 * 2 + i / 4 % 2];
      bits |= near_dropout_bits(word, i) >= at.args.drop_below ? 1u << i : 0u;
    }
    return bits;
  }
};

}  // namespace fmmformer::cuda::narrow_fp32
