// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "attention/fmm/cuda/launch.cuh"
#include "attention/fmm/cuda/whole/kernels.cuh"

namespace fmmformer::cuda::whole {
namespace {

int warps_of(const SweepArgs& args) { return (args.length + kTokens - 1) / kTokens; }
template <typename G>
int shared_bytes_of(const SweepArgs& args) {
  return G::kWarps + warps_of(args) * G::kWarpBytes;
}

/// As many blocks as run at once, or sequences: by the shape alone, since sums for weights are a
/// block's.
template <typename G>
dim3 grid_of(const SweepArgs& args) {
  constexpr int kSharedOfAll = 228 << 10,
                kTaken = 1 << 10;  // of a multiprocessor; beside a block's
  const int blocks = std::min(G::kBlocksAtOnce * kMostWarps / warps_of(args),
                              kSharedOfAll / (shared_bytes_of<G>(args) + kTaken));
  const int64_t rows = std::max(kMultiprocessors * std::max(blocks, 1) / args.heads, 1);
  return dim3(args.heads, static_cast<unsigned>(std::min(args.batch, rows)));
}

template <typename G, typename Kernel, typename... More>
cudaError_t launch(Kernel* kernel, const SweepArgs& args, cudaStream_t stream, More... more) {
  if (args.length == 0 || args.heads == 0 || args.batch == 0) return cudaSuccess;
  return launch_kernel(kernel, grid_of<G>(args), warps_of(args) * kWarpSize,
                       shared_bytes_of<G>(args), stream, args, more...);
}

/// Calls body(Shape) for the number of maps.
template <bool kPlain, bool kUnit, bool kBackward, bool kNarrow, typename Body>
auto with_maps(const SweepArgs& args, const Body& body) {
  if (args.maps == 1) return body(Packed<1, kPlain, kUnit, kBackward, kNarrow>());
  if (args.maps == 2) return body(Packed<2, kPlain, kUnit, kBackward, kNarrow>());
  return body(Packed<3, kPlain, kUnit, kBackward, kNarrow>());
}
/// Of all that a call may ask for; as in strips, unit features are not compiled for plain calls,
/// and narrow bands for these alone.
template <bool kBackward, typename Body>
auto with_shape(const SweepArgs& args, const Body& body) {
  if (args.unit_features) return with_maps<false, true, kBackward, false>(args, body);
  if (args.drop_below > 0 || !args.uniform_weights)
    return with_maps<false, false, kBackward, false>(args, body);
  const bool narrow = args.left <= kFarthest - 8;
  return narrow ? with_maps<true, false, kBackward, true>(args, body)
                : with_maps<true, false, kBackward, false>(args, body);
}

}  // namespace

int Launcher::shared_bytes(const SweepArgs& args) {
  const auto bytes = [&](auto shape) { return shared_bytes_of<decltype(shape)>(args); };
  return std::max(with_shape</*kBackward=*/false>(args, bytes),
                  with_shape</*kBackward=*/true>(args, bytes));
}
cudaError_t Launcher::forward_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_shape</*kBackward=*/false>(args, [&](auto shape) {
    using G = decltype(shape);
    return launch<G>(forward_kernel<G>, args, stream);
  });
}
cudaError_t Launcher::query_sweep(const SweepArgs& args, cudaStream_t stream) {
  const bool reduces = reduces_weight_sums(args);
  return with_shape</*kBackward=*/true>(args, [&](auto shape) {
    using G = decltype(shape);
    return launch<G>(backward_kernel<G>, args, stream, reduces);
  });
}
bool Launcher::reduces_weight_sums(const SweepArgs& args) {
  return args.chunk_states && args.weight_sums && has_weight_of_each_head(args) &&
         warps_of(args) > args.maps;
}
int64_t Launcher::ticket_bytes(const SweepArgs& args) {
  return int64_t{args.heads} * (args.maps + 1) * int64_t{sizeof(unsigned)};
}

}  // namespace fmmformer::cuda::whole
