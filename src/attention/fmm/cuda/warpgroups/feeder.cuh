// SPDX-License-Identifier: Apache-2.0
// What the keepers, or in sums the feeders, put into shared memory beside the state: rows of coming
// chunks, feature rows, and the sums of those before the chunk. Feeders below are either.
#pragma once

#include "attention/fmm/cuda/barrier.cuh"
#include "attention/fmm/cuda/warpgroups/shape.cuh"

namespace fmmformer::cuda::warpgroups {

/// Waits for all feeders.
__device__ __forceinline__ void meet_feeders() { named_barrier(1, kKeeperThreads); }

/// 1 / x in one instruction, for what is neither subnormal nor huge.
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Sums of feature rows before the chunk, those of queries times their dots. Feeders' warp w has
/// the channels from 16 w on of every map.
template <typename G, Sweep kSweep>
struct KeySums {
  using M = Memory<G, kSweep>;
  float sums[G::kMaps][2];  // channels g and g + 8

  static __device__ __forceinline__ int warp() { return threadIdx.x / kWarpSize; }
  /// Calls body(channel of the map, map, sum) for every sum of this lane.
  template <typename Body>
  __device__ __forceinline__ void each(const Body& body) {
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l) {
#pragma unroll
      for (int r = 0; r < 2; ++r) body(warp() * kBlockDim + r * 8 + lane_id() / 4, l, sums[l][r]);
    }
  }
  /// What a segment begins with.
  __device__ __forceinline__ void begin(const SweepArgs& args) {
    each([](int, int, float& sum) { sum = 0.f; });
    if (M::kSums) return;
    const StartEntries start(args, Place<G, kSweep>::numbers());
#pragma unroll 1
    for (int64_t entry = start.first; entry < start.first + start.count; ++entry) {
      const float* from = args.start.key_sums + entry * G::kMaps * G::kDim;
      each([&](int channel, int l, float& sum) { sum += from[l * G::kDim + channel]; });
    }
  }
  __device__ __forceinline__ void store(const SweepArgs& args, int64_t entry) {
    if (lane_id() % 4 != 0) return;
    float* to = args.made.key_sums + entry * G::kMaps * G::kDim;
    each([&](int channel, int l, float& sum) { to[l * G::kDim + channel] = sum; });
  }
  __device__ __forceinline__ void publish(int step) {
    if (lane_id() % 4 != 0) return;
    if constexpr (kSweep == Sweep::kForward) {
      // The order is that of chunks::KeySumOperands.
      constexpr int kOfLane = chunks::KeySumOperands<G>::kOfLane;
      each([&](int channel, int l, float& sum) {
        const int g = channel % 8, block = channel / kBlockDim, row = channel / 8 % 2;
        Elem* to = shared_at<Elem>(M::kKeySums) + 2 * (g / 2 * kOfLane + 2 * block) + g % 2 +
                   2 * (l * 2 * 4 * kOfLane + row);
        const Elem high(sum);
        to[0] = high, to[4 * kOfLane * 2] = Elem(sum - float(high));
      });
    } else {
      float* to = M::key_sums(step);
      each([&](int channel, int l, float& sum) { to[l * G::kDim + channel] = sum; });
    }
  }
  /// The chunk's feature rows, as a product with a column of ones or dots.
  __device__ __forceinline__ void add(int step) {
    const int lane = lane_id(), row = lane / 16 * 8 + lane % 8, slot = step & (M::kSlots - 1);
    const int mine =
        M::features(step) + warp() / 4 * kPanel + swizzled(row, warp() % 4 * 2 + lane / 8 % 2);
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l) {
      float sum[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        Fragment f;
        Bf16::ldmatrix4_transposed(f.r, shared_at<Elem>(mine + l * G::kTile + t * 2 * kPanelEight));
        Bf16::B factors = {{kOnes, kOnes}};
        if constexpr (M::kOfQueries) {
          const float* dots = M::numbers(chunks::kDot<G> + l, slot) + t * kBlockDim + lane % 4 * 2;
          factors = {{Bf16::pack(dots[0], dots[1]), Bf16::pack(dots[8], dots[9])}};
        }
        Bf16::multiply(sum, f, factors);
      }
      sums[l][0] += sum[0], sums[l][1] += sum[2];
    }
  }
};

template <typename G, Sweep kSweep>
struct Feeder {
  using M = Memory<G, kSweep>;
  static constexpr int kPieces = G::kDim / kPiece;
  static constexpr int kRowsAtOnce = kKeeperThreads / kPieces;  // sixteen
  static constexpr int kBytesAtOnce = kRowsAtOnce * kPanelRow;
  static constexpr int kTimes = kChunk / kRowsAtOnce, kHalf = kTimes / 2;
  using Place = warpgroups::Place<G, kSweep>;
  const SweepArgs& args;
  int row, piece, offset;   // this thread's in the first rows of a tile
  float factors[G::kMaps];  // weight * far_scale, for queries

  __device__ __forceinline__ explicit Feeder(const SweepArgs& args) : args(args) {
#pragma unroll
    for (int l = 0; M::kOfQueries && l < G::kMaps; ++l)
      factors[l] = weight_value(args.far_weight, l, Place::numbers().h, 0) * args.far_scale;
    row = threadIdx.x / kPieces, piece = threadIdx.x % kPieces;
    offset = piece / 8 * kPanel + swizzled(row, piece % 8);
  }
  /// What overwrites nothing that the band of the chunk before may see, and the 32 rows that do.
  __device__ __forceinline__ void copy_unseen(int step, uint64_t live) const {
    const int slot = step & (M::kSlots - 1), chunk = Place::chunk(step);
    const int first = M::kBackwards ? kHalf : 0;
#pragma unroll
    for (int which = 0; which < 2; ++which)
      copy<kHalf>(M::band(which, slot), band_view(which), chunk, live, first);
    if constexpr (M::kSums) return;
    copy<kTimes>(M::own(0, slot), M::kBackwards ? args.k : args.q, chunk, live, 0);
  }
  /// Own rows of the second tensor, for which there is one place.
  __device__ __forceinline__ void copy_second(int step, uint64_t live) const {
    if constexpr (M::kHasSecond)
      copy<kTimes>(M::own(1, 0), second_view(), Place::chunk(step), live, 0);
  }
  __device__ __forceinline__ void copy_seen(int step, uint64_t live) const {
    const int slot = step & (M::kSlots - 1), chunk = Place::chunk(step);
    const int first = M::kBackwards ? 0 : kHalf;
    if (threadIdx.x == 0) Place::live(slot) = live;
#pragma unroll
    for (int which = 0; which < 2; ++which)
      copy<kHalf>(M::band(which, slot), band_view(which), chunk, live, first);
    if constexpr (M::kNumberCount > 0) copy_numbers(slot, chunk);
  }
  /// From own rows: their features, or exp(-|x|).
  __device__ __forceinline__ void make_of_own(int step) const {
    const int from = M::own(0, step & (M::kSlots - 1)) + offset, to = M::kMade + offset;
#pragma unroll 1
    for (int i = 0; i < kTimes; ++i) {
      const uint4 raw = *shared_at<uint4>(from + i * kBytesAtOnce);
      const uint32_t x[4] = {raw.x, raw.y, raw.z, raw.w};
      uint32_t decay[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) decay[j] = decay_of(x[j]);
      uint4* const at = shared_at<uint4>(to + i * kBytesAtOnce);
      if constexpr (!M::kOwnFeatures) {
        *at = make_uint4(decay[0], decay[1], decay[2], decay[3]);
      } else {
        each_map<G>([&](auto map) {
          constexpr int kMap = decltype(map)::value;
          at[kMap * G::kTile / 16] =
              make_uint4(feature_pair<kMap>(x[0], decay[0]), feature_pair<kMap>(x[1], decay[1]),
                         feature_pair<kMap>(x[2], decay[2]), feature_pair<kMap>(x[3], decay[3]));
        });
      }
    }
  }
  /// Feature rows of the chunk's keys, or of its queries times weight * far_scale / norm; zeros for
  /// dead tokens and channels that heads do not have, since features of 0 are not 0. A thread reads
  /// pieces that it copied.
  __device__ __forceinline__ void make_features(int step) const {
    const int slot = step & (M::kSlots - 1);
    const uint64_t here = has_piece() ? Place::live(slot) : 0;
    const int from = M::band(0, slot) + offset, to = M::features(step) + offset;
    constexpr int kAtOnce = M::kSums ? 2 : 1;  // keepers have few registers
#pragma unroll kAtOnce
    for (int i = 0; i < kTimes; ++i) {
      const uint4 raw = *shared_at<uint4>(from + i * kBytesAtOnce);
      const uint32_t x[4] = {raw.x, raw.y, raw.z, raw.w};
      uint32_t decay[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) decay[j] = decay_of(x[j]);
      const bool alive = here >> (kRowsAtOnce * i + row) & 1;
      each_map<G>([&](auto map) {
        constexpr int kMap = decltype(map)::value;
        uint32_t f[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) f[j] = feature_pair<kMap>(x[j], decay[j]);
        if constexpr (M::kOfQueries) {
          // Read in any case: a branch here would hold up products that are under way.
          const float kept = M::numbers(chunks::kNorm<G> + kMap, slot)[kRowsAtOnce * i + row];
          const float norm = args.normaliser == Normaliser::kRowSum ? kept : args.fixed_norm;
          const chunks::SplitFactor factor(alive ? factors[kMap] * reciprocal(norm) : 0.f);
#pragma unroll
          for (int j = 0; j < 4; ++j) f[j] = factor.times(f[j]);
        } else {
#pragma unroll
          for (int j = 0; j < 4; ++j) f[j] = alive ? f[j] : 0;
        }
        *shared_at<uint4>(to + kMap * G::kTile + i * kBytesAtOnce) =
            make_uint4(f[0], f[1], f[2], f[3]);
      });
    }
  }
  /// A group of copies; empty beyond the segment.
  __device__ __forceinline__ void begin_copies(int step) const {
    if (step < Place::numbers().count) {
      const uint64_t live = Place::live_tokens(args, Place::chunk(step));
      copy_unseen(step, live), copy_seen(step, live);
      if constexpr (!M::kSums) commit_copies();
      copy_second(step, live);
    }
    commit_copies();
  }

 private:
  __device__ __forceinline__ bool has_piece() const {
    return chunks::has_piece<G>(args.head_dim, piece);
  }
  /// Sixteen rows of a chunk kCount times, from the first-th on. Dead tokens, those beyond the
  /// sequence, and channels that heads do not have become zeros, whatever memory holds there.
  template <int kCount>
  __device__ __forceinline__ void copy(int tile, const View& view, int chunk, uint64_t live,
                                       int first) const {
    const Elem* from = Place::rows_of(view) +
                       (int64_t(chunk) * kChunk + first * kRowsAtOnce + row) * view.row_stride +
                       piece * kPiece;
    const int64_t further = kRowsAtOnce * view.row_stride;
    const int to = tile + offset + first * kBytesAtOnce;
    const uint64_t bits = (has_piece() ? live : 0) >> (first * kRowsAtOnce + row);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      copy_async(shared_at<Elem>(to + i * kBytesAtOnce), from + i * further,
                 bits >> i * kRowsAtOnce & 1);
  }
  __device__ __forceinline__ const View& band_view(int which) const {
    return M::kOfQueries ? (which == 0 ? args.q : args.grad_out) : (which == 0 ? args.k : args.v);
  }
  __device__ __forceinline__ const View& second_view() const {
    return M::kKeys ? args.v : args.grad_out;
  }
  __device__ __forceinline__ void copy_numbers(int slot, int chunk) const {
    const int token = threadIdx.x % kChunk;
    const int from = min(max(chunk * kChunk + token, 0), args.length - 1);
#pragma unroll 1
    for (int n = threadIdx.x / kChunk; n < M::kNumberCount; n += kKeeperThreads / kChunk) {
      const float* source = row_numbers(n);
      float* const to = M::numbers(n, slot) + token;
      if (source) copy_number_async(to, source + from);
      if (!source) *to = 0.f;  // not read, or multiplied by 0
    }
  }
  __device__ const float* row_numbers(int n) const {
    const bool of_near = n == chunks::kLogSumExp || n == chunks::kDot<G> + G::kMaps;
    if (of_near && !args.has_near) return nullptr;
    if (of_near && n == 0) return args.log_sum_exp + Place::row_index(args, 1, 0);
    if (n >= chunks::kDot<G>)
      return args.row_dots + Place::row_index(args, G::kFields, n - chunks::kDot<G>);
    return args.normaliser == Normaliser::kRowSum
               ? args.normalisers + Place::row_index(args, G::kMaps, n - chunks::kNorm<G>)
               : nullptr;
  }
};

/// The feeders' part of a sum of states: they work ahead of the keepers.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void feed_sum(const SweepArgs& args,
                                         const Events<Memory<G, kSweep>>& events) {
  constexpr int kAhead = Memory<G, kSweep>::kSlots - 1;  // chunks that are copied meanwhile
  const Feeder<G, kSweep> feeder(args);
  KeySums<G, kSweep> key_sums;
  const int count = Place<G, kSweep>::numbers().count;
#pragma unroll 1
  for (int i = 0; i < kAhead; ++i) feeder.begin_copies(i);
  key_sums.begin(args);
#pragma unroll 1
  for (int step = 0; step < count; ++step) {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(kAhead - 1) : "memory");
    show_to_warpgroup();
    meet_feeders();
    feeder.make_features(step);
    show_to_warpgroup();
    meet_feeders();
    events.say(step % 2 ? kOddFeaturesFull : kFeaturesFull);
    key_sums.add(step);
    // The step before has left its rows' place, and its features' for the next one's.
    if (step > 0) events.await(step % 2 ? kFeaturesEmpty : kOddFeaturesEmpty, (step - 1) / 2);
    feeder.begin_copies(step + kAhead);
  }
  key_sums.store(args, blockIdx.x);
}

}  // namespace fmmformer::cuda::warpgroups
