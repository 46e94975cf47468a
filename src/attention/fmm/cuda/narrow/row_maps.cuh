// SPDX-License-Identifier: Apache-2.0
// RowMaps of a call, made on the host.
#pragma once

#include "attention/fmm/cuda/narrow/row_copies.cuh"
#include "attention/fmm/cuda/row_maps.cuh"

namespace fmmformer::cuda::narrow {

/// Of the tensors that a call has.
inline cudaError_t make_row_maps(const SweepArgs& args, RowMaps& maps) {
  const View* views[kTensors] = {&args.q,        &args.k,  &args.v,  &args.out,
                                 &args.grad_out, &args.dq, &args.dk, &args.dv};
  for (int i = 0; i < kTensors; ++i) {
    if (!views[i]->data) continue;
    const bool loaded = i == kQ || i == kK || i == kV || i == kGradOut;
    const cudaError_t error =
        make_row_map(maps.of[i], *views[i], args, kDim, loaded ? kRows : kBlockDim);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace fmmformer::cuda::narrow
