// SPDX-License-Identifier: Apache-2.0
// The definitions of launcher.cuh, included where a Launcher is instantiated.
#pragma once

#include <algorithm>

#include "attention/fmm/cuda/launch.cuh"
#include "attention/fmm/cuda/whole/kernels.cuh"

namespace fmmformer::cuda::whole {

/// How a sequence is cut: as many rounds as it takes, and as many warps as these take.
template <typename G>
struct Cut {
  int rounds, warps, shared_bytes;

  explicit Cut(const SweepArgs& args) {
    const int tiles = (args.length + kBlockDim - 1) / kBlockDim;
    rounds = (tiles + G::kMostWarps - 1) / G::kMostWarps;
    warps = rounds == 0 ? 0 : (tiles + rounds - 1) / rounds;
    const int carries = G::kBackward ? std::max(rounds - 1, 0) : 1;
    shared_bytes =
        G::kWarps + warps * (G::kWarpBytes + rounds * G::kTileStep) + carries * G::kCarryBytes;
  }
};

template <typename G, typename Kernel>
cudaError_t launch(Kernel* kernel, const SweepArgs& args, cudaStream_t stream) {
  if (args.length == 0 || args.heads == 0 || args.batch == 0) return cudaSuccess;
  const Cut<G> cut(args);
  constexpr int64_t kMostRows = 1 << 15;  // of a grid
  const unsigned rows = static_cast<unsigned>(std::min(args.batch, kMostRows));
  const dim3 grid(args.heads, rows, static_cast<unsigned>((args.batch + rows - 1) / rows));
  return launch_kernel(kernel, grid, cut.warps * kWarpSize, cut.shared_bytes, stream, args,
                       cut.rounds);
}

/// Calls body(Shape) for the number of maps.
template <int kDim, bool kPlain, bool kUnit, bool kBackward, typename Body>
auto with_maps(const SweepArgs& args, const Body& body) {
  if (args.maps == 1) return body(Packed<kDim, 1, kPlain, kUnit, kBackward>());
  if (args.maps == 2) return body(Packed<kDim, 2, kPlain, kUnit, kBackward>());
  return body(Packed<kDim, 3, kPlain, kUnit, kBackward>());
}
template <int kDim, bool kBackward, typename Body>
auto with_shape(const SweepArgs& args, const Body& body) {
  if (args.unit_features) return with_maps<kDim, false, true, kBackward>(args, body);
  const bool plain = args.drop_below == 0 && args.uniform_weights;
  return plain ? with_maps<kDim, true, false, kBackward>(args, body)
               : with_maps<kDim, false, false, kBackward>(args, body);
}

template <int kDim>
int Launcher<kDim>::shared_bytes(const SweepArgs& args) {
  const auto bytes = [&](auto shape) { return Cut<decltype(shape)>(args).shared_bytes; };
  return std::max(with_shape<kDim, /*kBackward=*/false>(args, bytes),
                  with_shape<kDim, /*kBackward=*/true>(args, bytes));
}
template <int kDim>
cudaError_t Launcher<kDim>::forward_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_shape<kDim, /*kBackward=*/false>(args, [&](auto shape) {
    using G = decltype(shape);
    return launch<G>(forward_kernel<G>, args, stream);
  });
}
template <int kDim>
cudaError_t Launcher<kDim>::query_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_shape<kDim, /*kBackward=*/true>(args, [&](auto shape) {
    using G = decltype(shape);
    return launch<G>(backward_kernel<G>, args, stream);
  });
}

}  // namespace fmmformer::cuda::whole
