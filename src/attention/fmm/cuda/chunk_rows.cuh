// SPDX-License-Identifier: Apache-2.0
// What the walks of chunks/ and chunks_fp32/ do alike with the numbers of a warp's sixteen rows.
#pragma once

#include "attention/fmm/cuda/fragment.cuh"

namespace fmmformer::cuda {

/// body(r, token) for rows g and g + 8, in one lane each and one slice.
template <typename Walk, typename Body>
__device__ __forceinline__ void each_row_once(const Walk& walk, const Body& body) {
  if (walk.place.slice != 0 || lane_id() % 4 != 0) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int token = walk.token(walk.place.tile) + row_of(2 * r);
    if (token < walk.args.length) body(r, token);
  }
}

}  // namespace fmmformer::cuda
