// SPDX-License-Identifier: Apache-2.0
// Launches of the sweeps that walk chunks with products of a warpgroup, for heads of up to 64
// channels in bf16, on GPUs of compute capability 9.0 alone.
#pragma once

#include "attention/fmm/cuda/chunks/launcher.cuh"

namespace fmmformer::cuda::chunks::warpgroup {

struct Launcher {
  static cudaError_t sum_states(const SweepArgs& args, bool of_queries, cudaStream_t stream);
  static cudaError_t forward_sweep(const SweepArgs& args, cudaStream_t stream);
  static cudaError_t query_sweep(const SweepArgs& args, cudaStream_t stream);
  static cudaError_t key_sweep(const SweepArgs& args, cudaStream_t stream);
};
using PassShape = chunks::PassShape<64>;

}  // namespace fmmformer::cuda::chunks::warpgroup
