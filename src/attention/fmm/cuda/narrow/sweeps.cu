// SPDX-License-Identifier: Apache-2.0
// For sm_90a alone: see src/CMakeLists.txt.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "for sm_90a alone: elsewhere products of a warpgroup would be nothing at all"
#endif

#include <algorithm>

#include "attention/fmm/cuda/launch.cuh"
#include "attention/fmm/cuda/narrow/both_sides/kernel.cuh"
#include "attention/fmm/cuda/narrow/keys.cuh"
#include "attention/fmm/cuda/narrow/queries.cuh"
#include "attention/fmm/cuda/narrow/row_maps.cuh"

namespace fmmformer::cuda::narrow {
namespace {

/// So many blocks for each head.
dim3 blocks_of_heads(const SweepArgs& args, int64_t of_head) {
  const int64_t rows = std::min<int64_t>(of_head, 1 << 15);
  return dim3(args.heads, static_cast<unsigned>(rows),
              static_cast<unsigned>((of_head + rows - 1) / rows));
}
bool is_empty(const SweepArgs& args) { return args.batch * args.heads == 0 || args.length == 0; }
template <typename G, typename Kernel>
cudaError_t launch(Kernel* kernel, const SweepArgs& args, cudaStream_t stream) {
  if (is_empty(args)) return cudaSuccess;
  return launch_kernel(kernel, blocks_of_heads(args, args.batch), kThreads, G::kBytes, stream,
                       args);
}
/// Of a kernel whose rows the copy engine moves.
template <typename G, typename Kernel>
cudaError_t launch_with_maps(Kernel* kernel, const SweepArgs& args, int64_t of_head, int threads,
                             cudaStream_t stream) {
  if (is_empty(args)) return cudaSuccess;
  RowMaps maps;
  const cudaError_t error = make_row_maps(args, maps);
  if (error != cudaSuccess) return error;
  return launch_kernel(kernel, blocks_of_heads(args, of_head), threads, G::kBytes, stream, args,
                       maps);
}

/// Calls body(Shape) for the number of maps.
template <Sweep kSweep, bool kDrops, bool kUnit, typename Body>
cudaError_t with_maps(const SweepArgs& args, const Body& body) {
  if (args.maps == 1) return body(Shape<1, kDrops, kUnit, kSweep>());
  if (args.maps == 2) return body(Shape<2, kDrops, kUnit, kSweep>());
  return body(Shape<3, kDrops, kUnit, kSweep>());
}
template <Sweep kSweep, bool kDrops, typename Body>
cudaError_t with_features(const SweepArgs& args, const Body& body) {
  return args.unit_features ? with_maps<kSweep, kDrops, true>(args, body)
                            : with_maps<kSweep, kDrops, false>(args, body);
}
template <Sweep kSweep, typename Body>
cudaError_t with_shape(const SweepArgs& args, const Body& body) {
  return args.drop_below > 0 ? with_features<kSweep, true>(args, body)
                             : with_features<kSweep, false>(args, body);
}

}  // namespace

cudaError_t Launcher::forward_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_shape<Sweep::kForward>(args, [&](auto shape) {
    using G = decltype(shape);
    return launch_with_maps<G>(forward_kernel<G>, args, args.batch, kThreads, stream);
  });
}
cudaError_t Launcher::query_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_shape<Sweep::kQueries>(args, [&](auto shape) {
    using G = decltype(shape);
    return launch<G>(query_kernel<G>, args, stream);
  });
}
cudaError_t Launcher::key_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_shape<Sweep::kKeys>(args, [&](auto shape) {
    using G = decltype(shape);
    return launch<G>(key_kernel<G>, args, stream);
  });
}
cudaError_t Launcher::gradient_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_shape<Sweep::kBoth>(args, [&](auto shape) {
    using Like = decltype(shape);
    using G = both_sides::Shape<Like::kMaps, Like::kDrops, Like::kUnit>;
    return launch_with_maps<G>(both_sides::gradient_kernel<G>, args, gradient_blocks(args),
                               both_sides::kBlockThreads, stream);
  });
}

}  // namespace fmmformer::cuda::narrow
