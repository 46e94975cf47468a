// SPDX-License-Identifier: Apache-2.0
// How a walk goes from chunk to chunk: by warps that do everything, by warps that are fed
// (feeder.cuh), and in sums.
#pragma once

#include "attention/fmm/cuda/chunks_fp32/walk.cuh"

namespace fmmformer::cuda::chunks_fp32 {

/// Walks the chunks, a barrier after each part: measure() and split(), in which all threads have
/// their shares of the chunk's rows; body(); finish(). begin_own_rows(chunk, live) copies own
/// rows; first() comes while the first copies are under way, halo() before the first chunk.
template <typename W, typename BeginOwnRows, typename First, typename Halo, typename Measure,
          typename Split, typename Body, typename Finish>
__device__ __forceinline__ void run(W& walk, const BeginOwnRows& begin_own_rows, const First& first,
                                    const Halo& halo, const Measure& measure, const Split& split,
                                    const Body& body, const Finish& finish) {
  using Scales = typename W::Scales;
  Scales::clear();
  walk.look_around();
  walk.begin_first();
  commit_copies();
  begin_own_rows(walk.chunk, walk.live);
  commit_copies();
  __syncthreads();
  first();
  wait_for_older_copies();
  if (walk.args.has_near) halo();
  __syncthreads();
#pragma unroll 1
  for (int left = walk.place.end - walk.place.begin; left > 0; --left) {
    walk.place.forget();
    if (left > 1) walk.begin(W::kDirection, walk.coming);
    commit_copies();
    wait_for_older_copies();
    Scales::clear_state_maxima(walk.set() ^ 1);
    measure();
    __syncthreads();
    split();
    __syncthreads();
    body();
    __syncthreads();
    Scales::clear_maxima(walk.set() ^ 1);
    if (left > 1) begin_own_rows(walk.chunk + W::kDirection, walk.coming);
    commit_copies();
    finish();
    wait_for_older_copies();
    __syncthreads();
    walk.advance();
  }
}

/// The same for those who are fed: chunks come as pairs, and show() writes the state of those
/// before. Of a step's two barriers the first says that the chunk is there and all have done with
/// the one before, the second that own rows may go.
template <typename W, typename First, typename Show, typename ShiftHalo, typename Body,
          typename Finish>
__device__ __forceinline__ void run_fed(W& walk, const First& first, const Show& show,
                                        const ShiftHalo& shift_halo, const Body& body,
                                        const Finish& finish) {
  walk.look_around();
  first();
#pragma unroll 1
  for (int left = walk.place.end - walk.place.begin; left > 0; --left) {
    walk.place.forget();
    walk.see_next();
    show();
    meet_block();
    if (walk.args.has_near) shift_halo();
    body();
    meet_block();
    finish();
    walk.advance();
  }
}

/// The same without own rows and body, in sums: a step is short, so two chunks are under way.
template <typename W, typename First, typename Measure, typename Split, typename Finish>
__device__ __forceinline__ void run_ahead(W& walk, const First& first, const Measure& measure,
                                          const Split& split, const Finish& finish) {
  using Scales = typename W::Scales;
  Scales::clear();
  int left = walk.place.end - walk.place.begin;
  walk.look_at(walk.chunk);
  walk.begin(0, walk.live);
  commit_copies();
  if (left > 1) walk.begin(1, walk.coming);
  commit_copies();
  first();
  wait_for_older_copies();
  __syncthreads();
#pragma unroll 1
  for (; left > 0; --left) {
    uint64_t later = 0;
    if (left > 2) walk.begin(2, later);
    commit_copies();
    measure();
    __syncthreads();
    split();
    __syncthreads();
    Scales::clear_maxima(walk.set() ^ 1);
    finish();
    wait_for_older_copies();
    __syncthreads();
    walk.advance();
    walk.coming = later;
  }
}

}  // namespace fmmformer::cuda::chunks_fp32
