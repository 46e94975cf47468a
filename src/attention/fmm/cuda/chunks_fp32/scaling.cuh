// SPDX-License-Identifier: Apache-2.0
// Powers of two that operands are multiplied with, so that fp16 numbers hold them (split.cuh).
//
// A shift s stands for 2^s. All numbers of a tensor in a chunk have the same, from the largest of
// them that is finite; the band's rows beside the chunk get the chunk's (shares.cuh). What is
// computed from them has shifts from bounds: a feature is at most 1 + max(1, |x|), a score of rows
// at most D times the largest numbers of either. Queries' features times factors, which are the
// inverse of their sizes, have the product of both bounds, unless factors differ so much that most
// bits would be lost: then the largest is sought. In the forward sweep, where it is the row's own
// norm that counts, every row of query features has its own shift. Results are multiplied with the
// inverse, exactly, where they join others.
//
// Chunks take turns with two sets of maxima and shifts, or three where the next one is prepared
// beside this one, which may need those of the chunk before.
#pragma once

#include "attention/fmm/cuda/chunks_fp32/split.cuh"

namespace fmmformer::cuda::chunks_fp32 {

// What has a maximum in every chunk:
constexpr int kBandRows = 0;         // [2] the walk's tensors,
constexpr int kOwnRows = 2;          // [2] own rows,
constexpr int kFactors = 4;          // [3] the maps' factors of query features,
constexpr int kDots = 7;             // [4] dots, the near field's last,
constexpr int kInverseFactors = 11;  // [3] 1 / factor,
constexpr int kSoughtFeatures = 14;  // [3] and features times factors, where they are sought.
constexpr int kSetSize = 17;         // of which a set has room
constexpr int kFeatureBounds = 7;    // [3] among shifts, as numbers: what features are at most
constexpr int kFeatureRows = 4;      // [3] among shifts: the maps' features

constexpr int kTop = 15;  // scaled numbers are below 2^kTop

/// 2^shift, subnormal where it is that small: a product of two scaled numbers, some 2^36, is none.
/// 0 below those.
__device__ __forceinline__ float power_of_2(int shift) {
  const int bits = (min(shift, 127) + 127) << 23;
  return __int_as_float(shift >= -126 ? bits : shift >= -149 ? 1 << (shift + 149) : 0);
}
/// The shift for numbers that are at most `largest`. A bound of infinity says nothing.
__device__ __forceinline__ int shift_for(float largest) {
  const int exponent = __float_as_int(largest) >> 23;
  return exponent == 255 ? 0 : min(kTop + 126 - exponent, 110);
}

/// Where all this lies in shared memory: from Memory::kScaling on.
template <typename M>
struct Scaling {
  static constexpr int kMaxima = M::kScaling;                  // [3][kSetSize], not negative
  static constexpr int kShifts = kMaxima + 3 * kSetSize;       // [3][kSetSize]
  static constexpr int kStateMaxima = kShifts + 3 * kSetSize;  // [2][4]
  static constexpr int kStateShifts = kStateMaxima + 8;        // [4]
  static_assert(kStateShifts + 4 <= M::kScaling + kScalingSize);

  /// This thread's number among those that copy and split rows, walkers or feeders.
  static __device__ __forceinline__ unsigned copier() {
    return M::G::kFed ? threadIdx.x % kThreads : threadIdx.x;
  }
  static __device__ void clear() {
    if (threadIdx.x < kScalingSize) *shared_at(M::kScaling + threadIdx.x) = 0.f;
  }
  static __device__ __forceinline__ float maximum(int set, int which) {
    return *shared_at(kMaxima + set * kSetSize + which);
  }
  static __device__ __forceinline__ void clear_maxima(int set) {
    if (copier() < kSetSize) *shared_at(kMaxima + set * kSetSize + copier()) = 0.f;
  }
  static __device__ __forceinline__ void raise_maximum(int set, int which, float x) {
    raise(kMaxima + set * kSetSize + which, x);
  }
  static __device__ __forceinline__ int shift(int set, int which) {
    return __float_as_int(*shared_at(kShifts + set * kSetSize + which));
  }
  static __device__ __forceinline__ float bound(int set, int map) {
    return *shared_at(kShifts + set * kSetSize + kFeatureBounds + map);
  }
  static __device__ __forceinline__ void set_bound(int set, int map, float bound) {
    if (copier() == 0) *shared_at(kShifts + set * kSetSize + kFeatureBounds + map) = bound;
  }
  static __device__ __forceinline__ void set_shift(int set, int which, int shift) {
    if (copier() == 0) *shared_at(kShifts + set * kSetSize + which) = __int_as_float(shift);
  }
  /// Of the state, by map.
  static __device__ __forceinline__ float state_maximum(int set, int map) {
    return *shared_at(kStateMaxima + set * 4 + map);
  }
  static __device__ __forceinline__ void clear_state_maxima(int set) {
    if (threadIdx.x < 4) *shared_at(kStateMaxima + set * 4 + threadIdx.x) = 0.f;
  }
  static __device__ __forceinline__ void raise_state_maximum(int set, int map, float x) {
    raise(kStateMaxima + set * 4 + map, x);
  }
  /// Or a bound of it, one addition a chunk. In some chunks the maximum itself is sought.
  static __device__ __forceinline__ void set_state_maximum(int set, int map, float x) {
    if (threadIdx.x == 0) *shared_at(kStateMaxima + set * 4 + map) = x;
  }
  static __device__ __forceinline__ bool seeks_state_maxima(int chunk) { return chunk % 8 == 0; }
  static __device__ __forceinline__ int state_shift(int map) {
    return __float_as_int(*shared_at(kStateShifts + map));
  }
  static __device__ __forceinline__ void set_state_shift(int map, int shift) {
    if (threadIdx.x == 0) *shared_at(kStateShifts + map) = __int_as_float(shift);
  }

 private:
  /// Numbers that are not negative have the order of their bits. What is not finite is left out,
  /// with what its thread has beside it.
  static __device__ __forceinline__ void raise(int place, float x) {
    const unsigned bits = __reduce_max_sync(~0u, x < INFINITY ? __float_as_uint(x) : 0u);
    if (lane_id() != 0) return;
    // What atomicMax becomes is longer: lanes that are not there join first.
    const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared_at(place)));
    asm volatile("red.shared.max.u32 [%0], %1;\n" ::"r"(address), "r"(bits) : "memory");
  }
};

}  // namespace fmmformer::cuda::chunks_fp32
