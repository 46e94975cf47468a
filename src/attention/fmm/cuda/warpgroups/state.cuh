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
  Block sums[kAllBlocks];  // of 64 channels of v a warp has sixteen
  const int panel, warp = threadIdx.x / kWarpSize % kGroupWarps;

  /// A sweep's part: see shape.cuh.
  __device__ __forceinline__ void run(const SweepArgs& args, const Events<M>& events) {
    if (M::kKeys && args.progress) await_progress(query_progress(args), 1);  // dots
    const Feeder<G, kSweep> feeder(args);
    KeySums<G, kSweep> key_sums;
    const int count = Place::numbers().count;
    feeder.copy_seen(-1, Place::live_tokens(args, Place::chunk(-1)));
    feeder.begin_copies(0);
    if (M::kHandsOn && Place::numbers().piece > 0) {
      take_over(args);
    } else {
      begin(args);
    }
    if constexpr (M::kHasKeySums) key_sums.begin(args);
#pragma unroll 1
    for (int step = 0; step < count; ++step) {
      const bool more = step + 1 < count;
      if constexpr (M::kHasSecond) {
        wait_for_older_copies();  // own rows of the second tensor come later
        make_features(feeder, key_sums, events, step);
        wait_for_copies();
        show_to_warpgroup();
        events.say(kTilesFull);
      } else {
        wait_for_copies();
        show_to_warpgroup();
        events.say(kTilesFull);
        make_features(feeder, key_sums, events, step);
      }
      meet_feeders();
      events.say(kFeaturesFull);
      const uint64_t live = Place::live_tokens(args, Place::chunk(step + 1));
      if (step > 0) events.await(kStateEmpty, step - 1);
      if constexpr (M::kOwnFeatures && !M::kRowsMakeOwn) {
        feeder.make_of_own(step);
        show_to_warpgroup();
        events.say(kOwnFull);
      }
      publish();
      show_to_warpgroup();
      // Awaited before the rows can end this step: an event tells odd steps from even ones alone.
      if (step > 0) events.await(kTilesEmpty, step - 1);
      events.say(kStateFull);
      if (more) feeder.copy_unseen(step + 1, live);
      if constexpr (M::kQueries) {
        feeder.make_of_own(step);
        events.say(kOwnFull);
      }
      begin_adding(step);
      if constexpr (M::kHasKeySums) key_sums.add(step);
      finish_adding();
      if (!more) continue;
      events.await(kHaloEmpty, step);
      feeder.copy_seen(step + 1, live);
      commit_copies();
      if constexpr (M::kHasSecond) events.await(kSecondEmpty, step);
      feeder.copy_second(step + 1, live);
      commit_copies();
    }
    if (M::kHandsOn && Place::numbers().piece + 1 < Place::numbers().pieces) hand_on(args);
    if (kSweep != Sweep::kForward || !args.made.sums) return;
    if (Place::numbers().segment == args.segments - 1)
      store(args, Place::numbers().pair), key_sums.store(args, Place::numbers().pair);
  }

  /// A sum's: adds what feeders make.
  __device__ __forceinline__ void run_sum(const SweepArgs& args, const Events<M>& events) {
    const int count = Place::numbers().count;
    begin(args);
#pragma unroll 1
    for (int step = 0; step < count; ++step) {
      events.await(step % 2 ? kOddFeaturesFull : kFeaturesFull, step / 2);
      begin_adding(step);
      finish_adding();
      events.say(step % 2 ? kOddFeaturesEmpty : kFeaturesEmpty);
    }
    store(args, blockIdx.x);
  }

 private:
  static __device__ __forceinline__ int* query_progress(const SweepArgs& args) {
    return args.progress + Place::numbers().pair;
  }
  static __device__ __forceinline__ int* value_progress(const SweepArgs& args) {
    return query_progress(args) + args.batch * args.heads;
  }
  /// The chunk's, and the sums of those before it.
  __device__ __forceinline__ void make_features(const Feeder<G, kSweep>& feeder,
                                                KeySums<G, kSweep>& key_sums,
                                                const Events<M>& events, int step) const {
    meet_feeders();  // numbers are there, and all have added the chunk before
    if (step > 0) events.await(kFeaturesEmpty, step - 1);
    if constexpr (M::kHasKeySums) key_sums.publish(step);
    feeder.make_features(step);
    show_to_warpgroup();
  }
  __device__ __forceinline__ void begin_adding(int step) {
    const int values = M::band(1, step & (M::kSlots - 1)) + panel * kPanel;
    begin_warpgroup_products();
#pragma unroll
    for (int s = 0; s < kTiles; ++s) {
      const Operand rows = columns_operand(values, s);
      if constexpr (!M::kSums) {
        product<Turned::kYes, Turned::kYes>(sums, rows, columns_operand(M::features(step), s),
                                            true);
      } else {
        // Sums begin with 128 registers a thread, which are too few to compile the other.
#pragma unroll
        for (int l = 0; l < G::kMaps; ++l)
          product<Turned::kYes, Turned::kYes>(
              reinterpret_cast<Block(&)[kMapBlocks]>(sums[l * kMapBlocks]), rows,
              columns_operand(M::features(step) + l * G::kTile, s), true);
      }
    }
    commit_products();
  }
  __device__ __forceinline__ void finish_adding() {
    wait_for_products<0>();
    arrived(sums);
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
    float* mine =
        of_entry + lane_id() % 4 * 2 * G::kDim + panel * 64 + warp * kBlockDim + lane_id() / 4;
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
  /// What the piece before handed on.
  __device__ __forceinline__ void take_over(const SweepArgs& args) {
    await_progress(value_progress(args), Place::numbers().piece);
    each(args.made.sums + int64_t(Place::numbers().pair) * G::kMaps * G::kDim * G::kDim,
         [](const float* at, float& sum) { sum = __ldcg(at); });
  }
  __device__ __forceinline__ void hand_on(const SweepArgs& args) {
    store(args, Place::numbers().pair);
    __threadfence();
    meet_feeders();
    if (threadIdx.x == 0) say_progress(value_progress(args), Place::numbers().piece + 1);
  }
  __device__ __forceinline__ void store(const SweepArgs& args, int64_t entry) {
    each(args.made.sums + entry * G::kMaps * G::kDim * G::kDim,
         [](float* at, float& sum) { *at = sum; });
  }
};

}  // namespace fmmformer::cuda::warpgroups
