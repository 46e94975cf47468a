// SPDX-License-Identifier: Apache-2.0
// Launches of the sweeps whose products are those of warpgroups, for heads of kDim channels in
// bf16, on GPUs of compute capability 9.0 alone.
#pragma once

#include "attention/fmm/cuda/chunks/launcher.cuh"

namespace fmmformer::cuda::warpgroups {

using chunks::kChunk;

/// The key sweep is two: dk, then dv. Each then fits the registers, and together they take no longer.
enum class Sweep { kForward, kQueries, kKeys, kValues, kSumOfKeys, kSumOfQueries };

template <int kDim>
struct Launcher {
  static cudaError_t sum_states(const SweepArgs& args, bool of_queries, cudaStream_t stream);
  static cudaError_t forward_sweep(const SweepArgs& args, cudaStream_t stream);
  static cudaError_t query_sweep(const SweepArgs& args, cudaStream_t stream);
  static cudaError_t key_sweep(const SweepArgs& args, cudaStream_t stream);
};

}  // namespace fmmformer::cuda::warpgroups
