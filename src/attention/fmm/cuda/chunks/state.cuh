// SPDX-License-Identifier: Apache-2.0
// Feature rows of a chunk in shared memory, and the states that they add up to.
#pragma once

#include "attention/fmm/cuda/chunks/walk.cuh"
#include "attention/fmm/cuda/paper_maps.cuh"
#include "attention/fmm/cuda/start_entries.cuh"
#include "attention/fmm/cuda/warpgroup.cuh"

namespace fmmformer::cuda::chunks {

/// A head's blend weights, the near field's last.
template <typename G>
struct Weights {
  float of[G::kFields];

  __device__ Weights(const SweepArgs& args, int head) {
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l) of[l] = weight_value(args.far_weight, l, head, 0);
    of[G::kMaps] = weight_value(args.near_weight, 0, head, 0);
  }
};

/// A factor as two bf16 numbers, each twice: what rounding takes away is put back.
struct SplitFactor {
  uint32_t high, low;

  __device__ explicit SplitFactor(float factor) {
    high = Bf16::pack(factor, factor);
    const float rest = factor - __uint_as_float(high << 16);
    low = Bf16::pack(rest, rest);
  }
  __device__ __forceinline__ uint32_t times(uint32_t x) const {
    return as_bits(__hfma2(as_pair(x), as_pair(high), __hmul2(as_pair(x), as_pair(low))));
  }
};

/// Feature rows of the chunk's keys, or of its queries times weight * far_scale / norm, from raw
/// rows; zeros for dead tokens and for channels that the head does not have, since features of 0
/// are not 0.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void make_features(const Walk<G, kSweep>& walk,
                                              const Weights<G>& weights) {
  using M = Memory<G, kSweep>;
  const SweepArgs& args = walk.args;
  const int row = threadIdx.x / G::kPieces, piece = threadIdx.x % G::kPieces;
  const int offset = piece_place<G>(row, piece);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const uint4 raw = *shared_at<uint4>(walk.tile(0, i) + offset);
    const uint32_t x[4] = {raw.x, raw.y, raw.z, raw.w};
    uint32_t decay[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) decay[j] = decay_of(x[j]);
    each_map<G>([&](auto map) {
      constexpr int kMap = decltype(map)::value;
      uint32_t f[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) f[j] = feature_pair<kMap>(x[j], decay[j]);
      if constexpr (M::kOfQueries) {
        const float norm = args.normaliser == Normaliser::kRowSum
                               ? walk.numbers(kNorm<G> + kMap, i)[row]
                               : args.fixed_norm;
        const SplitFactor factor(__fdividef(weights.of[kMap] * args.far_scale, norm));
#pragma unroll
        for (int j = 0; j < 4; ++j) f[j] = factor.times(f[j]);
      }
      *shared_at<uint4>(M::kFeatures + kMap * G::kArea + i * G::kTile + offset) =
          make_uint4(f[0], f[1], f[2], f[3]);
    });
  }
  const uint64_t live = has_piece<G>(args.head_dim, piece) ? walk.live : 0;
  if (live == ~uint64_t(0)) return;
#pragma unroll 1
  for (int i = 0; i < kTiles * G::kMaps; ++i) {
    if (live >> (row + i % kTiles * kBlockDim) & 1) continue;
    *shared_at<uint4>(M::kFeatures + i * G::kTile + offset) = make_uint4(0, 0, 0, 0);
  }
}

/// Sums over tokens of (feature row) x (row of v or grad_out) and of feature rows, the latter times
/// dots where they are queries'. A warp has sixteen feature channels of every map.
template <typename G>
struct State {
  Block sums[G::kMaps][G::kBlocks];
  float key_sums[G::kMaps][2];  // of channels g and g + 8; equal for all t

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l) {
      cuda::clear(sums[l]);
      key_sums[l][0] = key_sums[l][1] = 0.f;
    }
  }

  /// Adds the walk's chunk; where products are a warpgroup's, begins to.
  template <Sweep kSweep>
  __device__ __forceinline__ void add(const Walk<G, kSweep>& walk, const Loader<G>& load) {
    using M = Memory<G, kSweep>;
    if constexpr (G::kWarpgroup) begin_warpgroup_products();
    float of_keys[G::kMaps][4];
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l) {
#pragma unroll
      for (int i = 0; i < 4; ++i) of_keys[l][i] = 0.f;
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      Fragment f[G::kMaps];
      const int values = walk.tile(1, t);
#pragma unroll
      for (int l = 0; l < G::kMaps; ++l) {
        const int features = M::kFeatures + l * G::kArea + t * G::kTile;
        if constexpr (G::kWarpgroup) {
          begin_step<true, /*kTurned=*/true>(sums[l], warpgroup_operand(shared_at<Elem>(features)),
                                             warpgroup_operand(shared_at<Elem>(values)));
        }
        f[l] = load.left_turned(features, walk.place.warp);
        Bf16::B factors = {{kOnes, kOnes}};
        if constexpr (M::kOfQueries) {
          const float* dots = walk.numbers(kDot<G> + l, t) + lane_id() % 4 * 2;
          factors = {{Bf16::pack(dots[0], dots[1]), Bf16::pack(dots[8], dots[9])}};
        }
        Bf16::multiply(of_keys[l], f[l], factors);
      }
#pragma unroll
      for (int b = 0; b < G::kBlocks && !G::kWarpgroup; ++b) {
        const Fragment v = load.right_turned(values, b);
#pragma unroll
        for (int l = 0; l < G::kMaps; ++l) add_product(sums[l][b], f[l], v);
      }
    }
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l)
      key_sums[l][0] += of_keys[l][0], key_sums[l][1] += of_keys[l][2];
  }

  /// Rounded to shared memory, [maps][kDim][kRow].
  template <Sweep kSweep>
  __device__ __forceinline__ void publish(int warp) const {
    using M = Memory<G, kSweep>;
    const int state = M::kState + warp * G::kTile, at = result_place<G>();
#pragma unroll
    for (int n = 0; n < 2 * G::kBlocks; ++n) {
#pragma unroll
      for (int l = 0; l < G::kMaps; ++l) {
        const float(&c)[4] = sums[l][n / 2][n % 2];
        const int to = state + further<G>(at, n) + l * M::kStateOfMap;
        *shared_at<uint32_t>(to) = Bf16::pack(c[0], c[1]);
        *shared_at<uint32_t>(to + 8 * G::kRow) = Bf16::pack(c[2], c[3]);
      }
    }
    if constexpr (kSweep != Sweep::kForward) {
      if (lane_id() % 4 != 0) return;
      float* to = shared_at<float>(M::kKeySums) + warp * kBlockDim + lane_id() / 4;
#pragma unroll
      for (int l = 0; l < G::kMaps; ++l)
        to[l * G::kDim] = key_sums[l][0], to[l * G::kDim + 8] = key_sums[l][1];
    }
  }

  /// What a segment begins with.
  __device__ void begin(const SweepArgs& args, const Place<G>& place) {
    clear();
    const StartEntries start(args, place);
#pragma unroll 1
    for (int64_t entry = start.first; entry < start.first + start.count; ++entry) {
      each(args.start, entry, place.warp, [](float2* pair, float& low, float& high) {
        const float2 both = *pair;
        low += both.x, high += both.y;
      });
      each_key_sum(args.start, entry, place.warp, [](float* at, float& sum) { sum += *at; });
    }
  }
  /// The state becomes entry `entry` of args.made.
  __device__ void store(const SweepArgs& args, int64_t entry, int warp) {
    each(args.made, entry, warp,
         [](float2* pair, float& low, float& high) { *pair = make_float2(low, high); });
    if (lane_id() % 4 == 0)
      each_key_sum(args.made, entry, warp, [](float* at, float& sum) { *at = sum; });
  }

 private:
  template <typename Body>
  __device__ __forceinline__ void each(const States& states, int64_t entry, int warp,
                                       const Body& body) {
    float* of_entry = states.sums + entry * G::kMaps * G::kDim * G::kDim;
    float* mine = of_entry + (warp * kBlockDim + lane_id() / 4) * G::kDim + lane_id() % 4 * 2;
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l) {
#pragma unroll
      for (int i = 0; i < 4 * G::kBlocks; ++i) {
        const int n = i / 2, row = i % 2;
        float(&c)[4] = sums[l][n / 2][n % 2];
        float* at = mine + (l * G::kDim + row * 8) * G::kDim + n * 8;
        body(reinterpret_cast<float2*>(at), c[2 * row], c[2 * row + 1]);
      }
    }
  }
  template <typename Body>
  __device__ __forceinline__ void each_key_sum(const States& states, int64_t entry, int warp,
                                               const Body& body) {
    float* mine = states.key_sums + entry * G::kMaps * G::kDim + warp * kBlockDim + lane_id() / 4;
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l)
      body(mine + l * G::kDim, key_sums[l][0]), body(mine + l * G::kDim + 8, key_sums[l][1]);
  }
};

/// Key sums as the right operand of a product with query features: even columns have them rounded,
/// odd ones what rounding took away. A lane's registers lie side by side: of every map, uint32_t
/// [column % 2][t][kBlocks][2].
template <typename G>
struct KeySumOperands {
  static constexpr int kOfLane = 2 * G::kBlocks;

  /// By the warp with these sums. Barriers as for State::publish.
  static __device__ __forceinline__ void store(int place, const State<G>& state, int warp) {
    if (lane_id() % 4 != 0) return;
    const int g = lane_id() / 4;
    Elem* to = shared_at<Elem>(place) + (g / 2 * kOfLane + warp * 2) * 2 + g % 2;
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float sum = state.key_sums[l][r];
        const Elem high(sum);
        Elem* at = to + (l * 2 * 4 * kOfLane + r) * 2;
        at[0] = high, at[4 * kOfLane * 2] = Elem(sum - float(high));
      }
    }
  }
  /// Block s of map l.
  static __device__ __forceinline__ Bf16::B load(int place, int l, int s) {
    const int lane = lane_id(), column = lane / 4 % 2, t = lane % 4;
    const uint2 both = *(shared_at<uint2>(place) + ((l * 2 + column) * 4 + t) * G::kBlocks + s);
    return {{both.x, both.y}};
  }
};

}  // namespace fmmformer::cuda::chunks
