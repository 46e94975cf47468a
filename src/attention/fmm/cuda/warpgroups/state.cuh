// SPDX-License-Identifier: Apache-2.0
// A state keeper: sums over tokens of (row of v or grad_out) x (feature row of all maps), of 64
// channels of v, in the registers of a warpgroup. One product with both maps' features as columns
// needs the fewest registers beside its sums.
#pragma once

#include "attention/fmm/cuda/barrier.cuh"
#include "attention/fmm/cuda/warpgroups/feeder.cuh"

namespace fmmformer::cuda::warpgroups {

template <typename G, Sweep kSweep>
struct StateKeeper {
  using M = Memory<G, kSweep>;
  using Place = warpgroups::Place<G, kSweep>;
  static constexpr int kMapBlocks = G::kBlocks, kAllBlocks = G::kMaps * kMapBlocks;
  static constexpr int kAhead = M::kSlots - 1;  // chunks that are copied while one is worked on
  Block sums[kAllBlocks];  // of 64 channels of v a warp has sixteen
  const int panel, warp = threadIdx.x / kWarpSize % kGroupWarps;

  __device__ __forceinline__ void run(const SweepArgs& args, const Events<M>& events) {
    const Feeder<G, kSweep> feeder(args);
    KeySums<G, kSweep> key_sums;
    const int count = Place::numbers().count;
    if constexpr (!M::kSums) feeder.copy_seen(-1, Place::live_tokens(args, Place::chunk(-1)));
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const uint64_t live = Place::live_tokens(args, Place::chunk(i));
      if (i < count)
        feeder.copy_unseen(i, live), feeder.copy_seen(i, live), feeder.copy_values(i, live);
      commit_copies();
    }
    begin(args);
    key_sums.begin(args);
#pragma unroll 1
    for (int step = 0; step < count; ++step) {
      const int slot = step & (M::kSlots - 1), next = step + kAhead;
      const bool more = next < count;
      asm volatile("cp.async.wait_group %0;\n" ::"n"(kAhead - 1) : "memory");
      show_products();
      if constexpr (!M::kSums) events.say(kTilesFull);
      meet_keepers();  // numbers are there, and all have added the chunk before
      if constexpr (!M::kSums) {
        if (step > 0) events.await(kFeaturesEmpty, step - 1);
        key_sums.publish();
      }
      feeder.make_features(slot);
      show_products();
      meet_keepers();
      if constexpr (!M::kSums) events.say(kFeaturesFull);
      const uint64_t live = more ? Place::live_tokens(args, Place::chunk(next)) : 0;
      if constexpr (!M::kSums) {
        if (step > 0) events.await(kTilesEmpty, step - 1);
      }
      if (more) feeder.copy_unseen(next, live);
      if constexpr (!M::kSums) {
        if (step > 0) events.await(kStateEmpty, step - 1);
        publish();
        show_products();
        events.say(kStateFull);
      }
      begin_adding(M::band(1, slot) + panel * kPanel);
      if constexpr (kSweep != Sweep::kValues) key_sums.add(slot);
      wait_for_products<0>();
      arrived(sums);
      if (more) {
        if constexpr (!M::kSums) events.await(kHaloEmpty, step);
        feeder.copy_seen(next, live);
        if constexpr (M::kKeys) events.await(kValuesEmpty, step);
        feeder.copy_values(next, live);
      }
      commit_copies();
    }
    const bool last = kSweep == Sweep::kForward && args.made.sums &&
                      Place::numbers().segment == args.segments - 1;
    if (!M::kSums && !last) return;
    const int64_t entry = M::kSums ? blockIdx.x : Place::numbers().pair;
    store(args, entry), key_sums.store(args, entry);
  }

 private:
  static __device__ __forceinline__ void meet_keepers() { named_barrier(1, kKeeperThreads); }
  __device__ __forceinline__ void begin_adding(int values) {
    begin_products();
#pragma unroll
    for (int s = 0; s < kTiles; ++s)
      product<Turned::kYes, Turned::kYes>(sums, columns_operand(values, s),
                                          columns_operand(M::kFeatures, s), true);
    commit_products();
  }
  /// Rounded to shared memory: [maps][channels of v][feature channels].
  __device__ __forceinline__ void publish() const {
    const LanePlace lane(panel * 64 + warp * kBlockDim);
#pragma unroll
    for (int b = 0; b < kAllBlocks; ++b)
      store_fragment(M::kState + b / 4 * G::kStatePanel + lane.of(b % 4), rounded(sums[b]));
  }
  /// Calls body(place in memory, number) for all.
  template <typename Body>
  __device__ __forceinline__ void each(float* of_entry, const Body& body) {
    float* mine = of_entry + lane_id() % 4 * 2 * G::kDim + panel * 64 + warp * kBlockDim +
                  lane_id() / 4;
#pragma unroll
    for (int i = 0; i < 8 * kAllBlocks; ++i) {
      const int feature = i / 4 * 8 + i % 2, value = i / 2 % 2 * 8;
      body(mine + feature * G::kDim + value, sums[i / 8][i / 4 % 2][i % 4]);
    }
  }
  /// What a segment begins with.
  __device__ __forceinline__ void begin(const SweepArgs& args) {
    clear(sums);
    if (M::kSums) return;
    const StartEntries start(args, Place::numbers());
#pragma unroll 1
    for (int64_t entry = start.first; entry < start.first + start.count; ++entry)
      each(args.start.sums + entry * G::kMaps * G::kDim * G::kDim,
           [](const float* at, float& sum) { sum += *at; });
  }
  __device__ __forceinline__ void store(const SweepArgs& args, int64_t entry) {
    each(args.made.sums + entry * G::kMaps * G::kDim * G::kDim,
         [](float* at, float& sum) { *at = sum; });
  }
};

}  // namespace fmmformer::cuda::warpgroups
