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

template <typename G, typename Kernel>
cudaError_t launch(Kernel* kernel, const SweepArgs& args, cudaStream_t stream) {
  if (args.length == 0 || args.heads == 0 || args.batch == 0) return cudaSuccess;
  constexpr int64_t kMostRows = 1 << 15;  // of a grid
  const unsigned rows = static_cast<unsigned>(std::min(args.batch, kMostRows));
  const dim3 grid(args.heads, rows, static_cast<unsigned>((args.batch + rows - 1) / rows));
  return launch_kernel(kernel, grid, warps_of(args) * kWarpSize, shared_bytes_of<G>(args), stream,
                       args);
}

/// Calls body(Shape) for the number of maps.
template <bool kPlain, bool kUnit, bool kBackward, typename Body>
auto with_maps(const SweepArgs& args, const Body& body) {
  if (args.maps == 1) return body(Packed<1, kPlain, kUnit, kBackward>());
  if (args.maps == 2) return body(Packed<2, kPlain, kUnit, kBackward>());
  return body(Packed<3, kPlain, kUnit, kBackward>());
}
/// Of all that a call may ask for; as in strips, unit features are not compiled for plain calls.
template <bool kBackward, typename Body>
auto with_shape(const SweepArgs& args, const Body& body) {
  if (args.unit_features) return with_maps<false, true, kBackward>(args, body);
  const bool plain = args.drop_below == 0 && args.uniform_weights;
  return plain ? with_maps<true, false, kBackward>(args, body)
               : with_maps<false, false, kBackward>(args, body);
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
  return with_shape</*kBackward=*/true>(args, [&](auto shape) {
    using G = decltype(shape);
    return launch<G>(backward_kernel<G>, args, stream);
  });
}

}  // namespace fmmformer::cuda::whole
