// SPDX-License-Identifier: Apache-2.0
// The definitions of launcher.cuh, included where a Launcher is instantiated.
#pragma once

#include "attention/fmm/cuda/launch.cuh"
#include "attention/fmm/cuda/roles/kernels.cuh"
#include "attention/fmm/cuda/roles/launcher.cuh"

namespace fmmformer::cuda::roles {

template <typename G, typename Kernel>
cudaError_t launch(Sweep sweep, Kernel* kernel, const SweepArgs& args, cudaStream_t stream) {
  const int64_t blocks = args.batch * args.heads * args.segments;
  const Layout layout = layout_of<G>(sweep, args);
  return launch_kernel(kernel, dim3(static_cast<unsigned>(blocks)),
                       Role::warps<G>(args) * kWarpSize, layout.bytes, stream, args, layout);
}

/// Calls body(Shape) for a call that is plain, or not.
template <int kDim, typename Body>
cudaError_t with_shape(const SweepArgs& args, const Body& body) {
  const auto fits = [](const View& view) { return !view.data || view.aligned; };
  const auto one_pass = [](const Partial& partial) { return !partial.sums; };
  const bool plain = args.head_dim == kDim && args.value_dim == kDim && !args.stages_tiles &&
                     fits(args.q) && fits(args.k) && fits(args.v) && fits(args.out) &&
                     fits(args.grad_out) && fits(args.dq) && fits(args.dk) && fits(args.dv) &&
                     one_pass(args.partial_out) && one_pass(args.partial_dq) &&
                     one_pass(args.partial_dk) && one_pass(args.partial_dv);
  return plain ? body(Shape<kDim, true>()) : body(Shape<kDim, false>());
}

template <int kDim>
cudaError_t Launcher<kDim>::sum_states(const SweepArgs& args, bool of_queries,
                                       cudaStream_t stream) {
  return with_shape<kDim>(args, [&](auto shape) {
    using G = decltype(shape);
    return of_queries ? launch<G>(Sweep::kSumOfQueries, sum_kernel<G, true>, args, stream)
                      : launch<G>(Sweep::kSumOfKeys, sum_kernel<G, false>, args, stream);
  });
}
template <int kDim>
cudaError_t Launcher<kDim>::forward_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_shape<kDim>(args, [&](auto shape) {
    using G = decltype(shape);
    return args.causal ? launch<G>(Sweep::kForward, forward_kernel<G, true>, args, stream)
                       : launch<G>(Sweep::kForward, forward_kernel<G, false>, args, stream);
  });
}
template <int kDim>
cudaError_t Launcher<kDim>::query_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_shape<kDim>(args, [&](auto shape) {
    using G = decltype(shape);
    return args.causal ? launch<G>(Sweep::kQueries, query_kernel<G, true>, args, stream)
                       : launch<G>(Sweep::kQueries, query_kernel<G, false>, args, stream);
  });
}
template <int kDim>
cudaError_t Launcher<kDim>::key_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_shape<kDim>(args, [&](auto shape) {
    using G = decltype(shape);
    return args.causal ? launch<G>(Sweep::kKeys, key_kernel<G, true>, args, stream)
                       : launch<G>(Sweep::kKeys, key_kernel<G, false>, args, stream);
  });
}

}  // namespace fmmformer::cuda::roles
