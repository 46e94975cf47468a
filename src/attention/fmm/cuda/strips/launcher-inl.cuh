// SPDX-License-Identifier: Apache-2.0
// The definitions of launcher.cuh, included where a Launcher is instantiated.
#pragma once

#include <algorithm>

#include "attention/fmm/cuda/launch.cuh"
#include "attention/fmm/cuda/strips/launcher.cuh"
#include "attention/fmm/cuda/strips/teams.cuh"

namespace fmmformer::cuda::strips {

constexpr int kShortestStrip = 4;  // tiles; below, what comes before a walk is no longer small

inline bool is_cluster(const SweepArgs& args) { return args.clusters && args.segments > 1; }

/// As many strips as fill the GPU, by the shape alone.
template <typename G>
int strips_of(Sweep sweep, const SweepArgs& args) {
  const int64_t blocks = args.batch * args.heads * args.segments;
  const int64_t warps = kMultiprocessors * kMostStrips *
                        blocks_at_once<typename G::Math>(G::kDim, G::kMaps, sweep, args.causal);
  const int64_t units = (args.length + args.unit - 1) / args.unit;
  const int64_t longest = (units + args.segments - 1) / args.segments * args.unit;
  const int64_t tiles = (std::min<int64_t>(args.length, longest) + kBlockDim - 1) / kBlockDim;
  const int64_t most =
      std::min<int64_t>(most_strips<typename G::Math>(G::kDim, G::kMaps, sweep, is_cluster(args)),
                        std::max<int64_t>(tiles / kShortestStrip, 1));
  return static_cast<int>(std::clamp<int64_t>(warps / blocks, 1, most));
}

/// The layout of a sweep's shared memory.
template <typename G>
Layout layout_of(Sweep sweep, const SweepArgs& args, int strips) {
  Layout layout;
  int used = 0;
  const auto take = [&](bool wanted, int64_t bytes) {
    if (!wanted) return -1;
    const int at = used;
    used += static_cast<int>((bytes + 15) / 16 * 16);
    return at;
  };
  const bool sums = sweep == Sweep::kSumOfKeys || sweep == Sweep::kSumOfQueries;
  const bool both = sweep == Sweep::kBoth;
  const bool backward = sweep == Sweep::kQueries || sweep == Sweep::kKeys || both;
  layout.weights = take(true, Weights<G>::kBytes);
  layout.live_tiles = take(!args.causal, LiveTiles::kBytes);
  layout.fixed = take(!args.causal && !sums, FixedSums<G>::kBytes);
  for (int which = 0; which < 2; ++which) {
    layout.parts[which] = take(G::kTeam && (which == 0 || sweep == Sweep::kKeys),
                               G::kFields * G::kTile * sizeof(float));
  }
  layout.exchange = layout.warps = used;
  used = 0;  // from here on in a warp's memory
  const int tile = G::kTile * sizeof(ElemOf<G>);
  for (int which = 0; which < 2; ++which) {
    layout.band[which] = take(true, kSlots * tile);
    layout.own[which] = take(!sums && (which == 0 || backward), 2 * tile);
  }
  const int numbers = sweep == Sweep::kQueries ? 1 + G::kMaps : 2 + 2 * G::kMaps;
  layout.numbers =
      take(backward || sweep == Sweep::kSumOfQueries, numbers * kSlots * kBlockDim * sizeof(float));
  layout.number_rows = take(backward || sweep == Sweep::kSumOfQueries, numbers * sizeof(float*));
  layout.by_weight = take(sweep == Sweep::kQueries, ByWeight<G>::kBytes);
  layout.key_sums =
      take((args.causal && !sums) || sweep == Sweep::kQueries, G::kMaps * G::kDim * sizeof(float));
  if (both) {  // where keys have more numbers than queries
    layout.key_sums = layout.numbers + (1 + G::kMaps) * kSlots * kBlockDim * sizeof(float);
    layout.by_weight = layout.key_sums + G::kMaps * G::kDim * sizeof(float);
    static_assert(G::kMaps * G::kDim * sizeof(float) + ByWeight<G>::kBytes <=
                  (1 + G::kMaps) * kSlots * kBlockDim * sizeof(float));
  }
  const bool keys = sweep == Sweep::kKeys || both;
  layout.weight_sums = take(keys && args.weight_sums && !args.uniform_weights,
                            G::kFields * G::kBlocks * kWarpSize * sizeof(float4));
  layout.warp_bytes = used;
  const int exchange = strips * G::kState * kWarpSize * sizeof(float) + Gathered<G>::kBytes;
  const bool exchanges = strips > 1 || !args.causal || sums || args.segments > 1;
  layout.bytes = layout.warps + std::max(strips * layout.warp_bytes, exchanges ? exchange : 0);
  return layout;
}

template <typename G, typename Kernel>
cudaError_t launch(Sweep sweep, Kernel* kernel, const SweepArgs& args, cudaStream_t stream) {
  const int64_t blocks = args.batch * args.heads * args.segments;
  if (blocks == 0) return cudaSuccess;  // nothing to cut
  int strips = G::kTeam ? 1 : strips_of<G>(sweep, args);
  Layout layout = layout_of<G>(sweep, args, strips);
  while (is_cluster(args) && layout.bytes > kSharedOfCluster)
    layout = layout_of<G>(sweep, args, --strips);
  const int warps = G::kTeam ? G::kMaps + args.has_near : strips;
  const bool reduces = sweep == Sweep::kKeys && args.weight_sums && args.uniform_weights;
  const int64_t numbers = reduces ? args.near_gradient.count() + args.far_gradient.count() : 0;
  return launch_clusters(kernel, dim3(static_cast<unsigned>(blocks + numbers)),
                         is_cluster(args) ? args.segments : 1, warps * kWarpSize, layout.bytes,
                         stream, args, layout);
}

/// Calls body(Shape) for the number of maps.
template <typename Math, int kDim, bool kPlain, bool kUnit, typename Body>
cudaError_t with_maps(const SweepArgs& args, const Body& body) {
  if (args.maps == 1) return body(Shape<Math, kDim, 1, kPlain, kUnit>());
  if (args.maps == 2) return body(Shape<Math, kDim, 2, kPlain, kUnit>());
  return body(Shape<Math, kDim, 3, kPlain, kUnit>());
}
/// Unit features are not compiled for plain calls once more: the paper's models with such features
/// have weights per channel.
template <typename Math, int kDim, typename Body>
cudaError_t with_shape(const SweepArgs& args, const Body& body) {
  if (args.unit_features) return with_maps<Math, kDim, false, true>(args, body);
  const bool plain = args.drop_below == 0 && args.uniform_weights;
  return plain ? with_maps<Math, kDim, true, false>(args, body)
               : with_maps<Math, kDim, false, false>(args, body);
}

template <typename Math, int kDim>
cudaError_t Launcher<Math, kDim>::sum_states(const SweepArgs& args, bool of_queries,
                                             cudaStream_t stream) {
  const auto sum = [&](auto shape) {
    using G = decltype(shape);
    return of_queries ? launch<G>(Sweep::kSumOfQueries, sum_kernel<G, true>, args, stream)
                      : launch<G>(Sweep::kSumOfKeys, sum_kernel<G, false>, args, stream);
  };
  // There is no near field here, so nothing differs from plain calls.
  return args.unit_features ? with_maps<Math, kDim, true, true>(args, sum)
                            : with_maps<Math, kDim, true, false>(args, sum);
}
template <typename Math, int kDim>
cudaError_t Launcher<Math, kDim>::forward_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_shape<Math, kDim>(args, [&](auto shape) {
    using G = decltype(shape);
    if (!args.causal) return launch<G>(Sweep::kForward, forward_kernel<G, false>, args, stream);
    if constexpr (walks_in_teams<Math>(kDim)) {
      return launch<TeamOf<G>>(Sweep::kForward, team_forward_kernel<TeamOf<G>>, args, stream);
    } else {
      return launch<G>(Sweep::kForward, forward_kernel<G, true>, args, stream);
    }
  });
}
template <typename Math, int kDim>
cudaError_t Launcher<Math, kDim>::query_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_shape<Math, kDim>(args, [&](auto shape) {
    using G = decltype(shape);
    if (args.clusters) return launch<G>(Sweep::kBoth, backward_kernel<G>, args, stream);
    if (!args.causal) return launch<G>(Sweep::kQueries, query_kernel<G, false>, args, stream);
    if constexpr (walks_in_teams<Math>(kDim)) {
      return launch<TeamOf<G>>(Sweep::kQueries, team_query_kernel<TeamOf<G>>, args, stream);
    } else {
      return launch<G>(Sweep::kQueries, query_kernel<G, true>, args, stream);
    }
  });
}
template <typename Math, int kDim>
cudaError_t Launcher<Math, kDim>::key_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_shape<Math, kDim>(args, [&](auto shape) {
    using G = decltype(shape);
    if (!args.causal) return launch<G>(Sweep::kKeys, key_kernel<G, false>, args, stream);
    if constexpr (walks_in_teams<Math>(kDim)) {
      return launch<TeamOf<G>>(Sweep::kKeys, team_key_kernel<TeamOf<G>>, args, stream);
    } else {
      return launch<G>(Sweep::kKeys, key_kernel<G, true>, args, stream);
    }
  });
}

}  // namespace fmmformer::cuda::strips
