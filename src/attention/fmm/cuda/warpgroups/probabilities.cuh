// SPDX-License-Identifier: Apache-2.0
// The near field's probabilities, as the sweeps of backward make them again:
//
//   P_ij = exp(near_scale <q_i, k_j> - log_sum_exp_i) inside the band, 0 outside
#pragma once

#include "attention/fmm/cuda/warpgroups/rows.cuh"

namespace fmmformer::cuda::warpgroups {

/// Scores p become probabilities. Rows are queries or, in the sweeps of keys and values, keys.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void probabilities(NearBlocks& p, const Rows<G, kSweep>& rows,
                                              const typename Rows<G, kSweep>::Band& band) {
  float of_rows[2];
  if constexpr (kSweep == Sweep::kQueries) {
    rows.row_numbers(of_rows, chunks::kLogSumExp);
    // Beyond the end the numbers are another row's.
#pragma unroll
    for (int r = 0; r < 2; ++r) of_rows[r] = rows.is_live(r) ? of_rows[r] : INFINITY;
  }
  const uint32_t inside = rows.near_bits(band);
#pragma unroll
  for (int k = 0; k < chunks::kMostGroups; ++k) {
    float2 of_columns[2];
    if constexpr (kSweep != Sweep::kQueries)
      rows.column_numbers(of_columns, chunks::kLogSumExp, rows.tile + k);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float log_sum;
      if constexpr (kSweep == Sweep::kQueries) {
        log_sum = of_rows[i % 4 / 2];
      } else {
        log_sum = i % 2 ? of_columns[i / 4].y : of_columns[i / 4].x;
      }
      float& element = p[k][i / 4][i % 4];
      element = Bf16::exp2(element * band.scale - log_sum * kLog2E);
      element = inside >> (8 * k + i) & 1 ? element : 0.f;
    }
  }
}

/// Of the sweeps with two tensors of own rows: p becomes probabilities, g the gradients of scores,
/// (own rows of the second tensor) (rows of the band's second tensor)^T. Returns which of the
/// band's dropout keeps.
template <typename G, Sweep kSweep>
__device__ __forceinline__ uint32_t
probabilities_and_gradients(NearBlocks& p, Scores& g, const Rows<G, kSweep>& rows,
                            const typename Rows<G, kSweep>::Band& band) {
  uint32_t kept;
  {
    Scores x;
    rows.begin_scores(x, 0);
    rows.begin_scores(g, 1);
    kept = rows.kept_bits(band);
    wait_for_products<1>();
    x.wait();
    rows.gather(p, x);
  }
  probabilities(p, rows, band);
  wait_for_products<0>();
  g.wait();
  return kept;
}

}  // namespace fmmformer::cuda::warpgroups
