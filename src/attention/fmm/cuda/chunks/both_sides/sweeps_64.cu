// SPDX-License-Identifier: Apache-2.0
// For sm_90a alone: see src/CMakeLists.txt.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "for sm_90a alone: elsewhere products of a warpgroup would be nothing at all"
#endif

#include "attention/fmm/cuda/chunks/both_sides/forward/kernel.cuh"
#include "attention/fmm/cuda/chunks/both_sides/kernel.cuh"
#include "attention/fmm/cuda/launch.cuh"
#include "attention/fmm/cuda/row_maps.cuh"

namespace fmmformer::cuda::chunks::both_sides {
namespace {

/// Calls body(Shape) for the number of maps and channels,
template <bool kDrops, typename Body>
cudaError_t with_maps(const SweepArgs& args, const Body& body) {
  return with_fullness<64>(args, [&](auto full) {
    const auto of = [&](auto maps) {
      return body(Shape<64, maps, kDrops, /*kPadded=*/false, full, /*kWarpgroup=*/true>());
    };
    return args.maps == 1 ? of(std::integral_constant<int, 1>())
                          : of(std::integral_constant<int, 2>());
  });
}

/// with dropout or without.
template <typename Body>
cudaError_t with_shape(const SweepArgs& args, const Body& body) {
  return args.drop_below > 0 ? with_maps<true>(args, body) : with_maps<false>(args, body);
}

/// The blocks of a pair's segments are a cluster. `rows`: those of each tensor in `maps` that the
/// copy engine takes at once.
template <typename Maps, size_t kCount, typename... Parameters>
cudaError_t launch(void (*kernel)(SweepArgs, Maps, Parameters...), const SweepArgs& args,
                   const View* const (&views)[kCount], const int (&rows)[kCount], int threads,
                   int shared_bytes, cudaStream_t stream, Parameters... others) {
  const int64_t blocks = args.batch * args.heads * args.segments;
  if (blocks == 0 || args.length == 0) return cudaSuccess;
  Maps maps;
  for (size_t i = 0; i < kCount; ++i) {
    const cudaError_t error = make_row_map(maps.of[i], *views[i], args, 64, rows[i]);
    if (error != cudaSuccess) return error;
  }
  return launch_clusters(kernel, dim3(static_cast<unsigned>(blocks)), args.segments, threads,
                         shared_bytes, stream, args, maps, others...);
}

}  // namespace

cudaError_t Launcher::forward_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_shape(args, [&](auto shape) {
    using G = decltype(shape);
    return launch(forward::forward_kernel<G>, args, {&args.q, &args.k, &args.v, &args.out},
                  {kChunk, kChunk, kChunk, kBlockDim}, forward::kThreads,
                  forward::Memory<G>::kBytes, stream);
  });
}
cudaError_t Launcher::gradient_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_shape(args, [&](auto shape) {
    using G = decltype(shape);
    return launch(gradient_kernel<G>, args,
                  {&args.q, &args.k, &args.v, &args.grad_out, &args.dq, &args.dk, &args.dv},
                  {kChunk, kChunk, kChunk, kChunk, rows_of_dq(G::kMaps), kBlockDim, kBlockDim},
                  Groups<G>::kThreads, Memory<G>::kBytes, stream,
                  Launcher::reduces_weight_sums(args));
  });
}

}  // namespace fmmformer::cuda::chunks::both_sides
