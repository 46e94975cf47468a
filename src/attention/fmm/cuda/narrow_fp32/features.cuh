// SPDX-License-Identifier: Apache-2.0
// Feature rows of a chunk as operands for all to see, and their sums.
#pragma once

#include "attention/fmm/cuda/narrow_fp32/rows.cuh"

namespace fmmformer::cuda::narrow_fp32 {

/// Feature rows of the warp's tile as pairs, and their sums, each row times its number, for all to
/// see.
template <typename G>
__device__ __forceinline__ void show_features(const Sequence<G>& at, int map, const Rows& f,
                                              int shift, const float (&numbers)[2]) {
  Left x[kBlocks];
  split_rows(x, f, power_of_2(shift));
  const uint32_t tile = at.features(map) + at.warp * kTileBytes;
#pragma unroll
  for (int s = 0; s < kBlocks; ++s) store_operand(tile + (by_row(at.lane) ^ s * 32), x[s]);
  float sums[kBlocks * 4];
#pragma unroll
  for (int i = 0; i < kBlocks * 4; ++i) {
    const float* c = f[i / 4][i / 2 % 2] + i % 2;
    sums[i] = c[0] * numbers[0] + c[2] * numbers[1];
  }
  shared_at<float>(G::kTileSums)[(at.warp * G::kMaps + map) * kDim + channel_of_lane()] =
      sum_columns(sums);
}

/// body(map, feature rows of the warp's tile of the band) for every map.
template <typename G, typename Body>
__device__ __forceinline__ void each_feature_tile(const Sequence<G>& at, const Body& body) {
  const float unit = power_of_2(-at.band_size(0, at.warp).shift);
  each_map_in_turn<G>([&](int map) {
    Rows x, f;
    load_rows(x, at.band_tile(0, at.warp), at.lane);
    float unused[2];
    with_map<G>(map, [&](auto constant) { make_features<G>(constant, f, x, unit, unused); });
    body(map, f);
  });
}

/// Feature rows of the warp's keys, and their sums, for all to see; zeros for dead ones. A barrier
/// must follow.
template <typename G>
__device__ __forceinline__ void show_keys(const Sequence<G>& at) {
  const uint32_t live = at.live(at.tile());
  each_feature_tile(at, [&](int map, Rows& f) {
    if (live != 0xffffu) {
      each_element([&](int s, int i) {
        if (!(live >> row_of(i % 4) & 1)) element(f, s, i) = 0.f;
      });
    }
    show_features(at, map, f, at.band_size(0, at.warp).features, {1.f, 1.f});
  });
  show_to_warpgroup();
}

/// Feature rows of the warp's queries times far_scale / norm, their sums times the rows' dots, and
/// the dots themselves, all with a minus where dots are, for all to see. A barrier must follow.
template <typename G>
__device__ __forceinline__ void show_queries(const Sequence<G>& at) {
  const float* numbers = at.numbers(0, at.warp);
  each_feature_tile(at, [&](int l, Rows& f) {
    float factor[2], dot[2], most = 0.f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      factor[r] = numbers[(G::kNorms + l) * kBlockDim + row_of(2 * r)];
      dot[r] = numbers[(G::kFarDots + l) * kBlockDim + row_of(2 * r)];
    }
    each_element([&](int s, int i) {
      float& x = element(f, s, i);
      x *= factor[row_number(i)];
      most = fmaxf(most, fabsf(x));
    });
    const int shift = shift_for(warp_max(most));
    show_features(at, l, f, shift, dot);
    const int dot_shift = shift_for(warp_max(fmaxf(fabsf(dot[0]), fabsf(dot[1]))));
    if (lane_id() == 0) {
      shared_at<int>(G::kQueryShifts)[l * kTiles + at.warp] = shift;
      shared_at<int>(G::kDotShifts)[l * kTiles + at.warp] = dot_shift;
    }
    if (lane_id() < kBlockDim)
      shared_at<float>(G::kDots)[l * kRows + at.warp * kBlockDim + lane_id()] =
          numbers[(G::kFarDots + l) * kBlockDim + lane_id()];
  });
  show_to_warpgroup();
}
}  // namespace fmmformer::cuda::narrow_fp32
