// SPDX-License-Identifier: Apache-2.0
// What a far role knows of a step besides the tiles.
#pragma once

#include "attention/fmm/cuda/barrier.cuh"
#include "attention/fmm/cuda/roles/shape.cuh"

namespace fmmformer::cuda::roles {

/// Sums that the roles of one map's parts have to share within a step, each at its own place. That
/// of kAlong also holds a role's own row dots for a while.
enum class Exchange { kOfQueries, kOfKeys, kRowSums, kDots, kAlong };
constexpr int kExchanges = 5;

template <typename G>
struct FarStep {
  const SweepArgs& args;
  Role role;
  FeatureMap map;
  float* normalisers;      // of the map, by token
  float* row_dots;         // likewise; backward only
  const float* weight;     // [kSliceDim]
  float* shared;           // [kExchanges][far roles][16]
  int first = 0;           // token
  uint32_t live_rows = 0;  // bits of the step's tokens

  __device__ FarStep(const SweepArgs& args, const Place<G>& place, const Role& role,
                     const float* weight, float* shared)
      : args(args), role(role), map(args.feature_maps[role.map]), weight(weight), shared(shared) {
    const int field = args.first_map + role.map;
    normalisers = args.normalisers + place.row_index(args, args.all_maps, field, 0);
    row_dots = args.row_dots + place.row_index(args, args.all_maps + 1, field, 0);
  }

  __device__ __forceinline__ float* shared_rows(Exchange exchange, int role_index) const {
    return shared + (int(exchange) * Role::far_count<G>(args) + role_index) * kBlockDim;
  }
  /// Numbers of rows g and g + 8, equal in the four lanes of a row, become the sums over the map's
  /// parts, in the same order everywhere. Those that differ by slice: kAllSlices.
  template <bool kAllSlices = false>
  __device__ __forceinline__ void add_parts(float (&x)[2], Exchange exchange) const {
    if constexpr (G::kParts == 1) return;
    constexpr int kStep = kAllSlices ? 1 : G::kSlices;
    const int roles = Role::parts<G>(args) * G::kSlices;
    if (roles == 1) return;
    float* own = shared_rows(exchange, role.index);
    if (lane_id() % 4 == 0) own[row_of(0)] = x[0], own[row_of(2)] = x[1];
    named_barrier(1 + role.map, roles * kWarpSize);
    const float* all = shared_rows(exchange, role.map * roles + (kAllSlices ? 0 : role.slice));
    x[0] = x[1] = 0.f;
    for (int other = 0; other < roles; other += kStep, all += kStep * kBlockDim) {
      x[0] += all[row_of(0)], x[1] += all[row_of(2)];
    }
  }
  __device__ __forceinline__ void add_parts_and_slices(float (&x)[2], Exchange exchange) const {
    add_parts</*kAllSlices=*/true>(x, exchange);
  }
};

}  // namespace fmmformer::cuda::roles
