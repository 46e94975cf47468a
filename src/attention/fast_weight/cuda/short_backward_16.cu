// SPDX-License-Identifier: Apache-2.0
#include "attention/fast_weight/cuda/launcher.cuh"
#include "attention/fast_weight/cuda/short_backward.cuh"

namespace fmmformer::cuda::fast_weight {
namespace {

using ShortShape = Shape<16, 16, 1, 4>;
constexpr int kBytes = GroupTiles<ShortShape, true>::kBytes;

/// Blocks on a multiprocessor: six for plain calls, as many as shared memory has room for and as
/// 768 pairs need to be one round on an H200; what serves every other call would spill its
/// registers.
template <bool kPlain>
constexpr int kBlocks = kPlain ? 6 : 4;

template <typename Math, bool kPlain>
__global__ void __launch_bounds__(ShortShape::kThreads, kBlocks<kPlain>)
    short_backward_kernel(const __grid_constant__ SweepArgs given) {
  const SweepArgs args = known_args<ShortShape, kPlain>(given);
  const Place place(args, blockIdx.x);
  const Channels<ShortShape> channels(args, 0);
  walk_back<Math, ShortShape>(args, place, channels);
}

}  // namespace

template <typename Math, int kDim>
cudaError_t ShortLauncher<Math, kDim>::backward(const SweepArgs& args, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(args.batch * args.heads));
  if constexpr (kHasPlain<Math, kDim>) {
    if (is_plain<ShortShape>(args))
      return launch_kernel(short_backward_kernel<Math, true>, blocks, ShortShape::kThreads, kBytes,
                           stream, args);
  }
  return launch_kernel(short_backward_kernel<Math, false>, blocks, ShortShape::kThreads, kBytes,
                       stream, args);
}

template struct ShortLauncher<Tf32, 16>;
template struct ShortLauncher<Split, 16>;

}  // namespace fmmformer::cuda::fast_weight
