// SPDX-License-Identifier: Apache-2.0
// The sweeps as kernels: a thread block walks a segment chunk by chunk.
#pragma once

#include "attention/fmm/cuda/far.cuh"
#include "attention/fmm/cuda/near.cuh"
#include "attention/fmm/cuda/shared_memory.cuh"

namespace fmmformer::cuda {

extern __shared__ __align__(16) unsigned char dynamic_shared_memory[];

/// Begins to load the chunk's rows of two tensors with the band's halo.
template <typename G>
__device__ __forceinline__ void load_band(const SharedMemory<G>& shared, const SweepArgs& args,
                                          const Place<G>& place, int chunk, const View& first,
                                          const View& second) {
  const int rows = args.halo_before + G::kRows + args.halo_after;
  const int token = chunk - args.halo_before;
  load_rows<G, G::kKeyDim, G::kThreads>(shared.band[0], first, args.head_dim, args, place, token,
                                        rows, threadIdx.x);
  load_rows<G, G::kValueDim, G::kThreads>(shared.band[1], second, args.value_dim, args, place,
                                          token, rows, threadIdx.x);
}
/// ... and the chunk's own rows of another.
template <typename G, int kDim>
__device__ __forceinline__ void load_own(typename G::Elem* tile, const View& view, int dim,
                                         const SweepArgs& args, const Place<G>& place, int chunk) {
  load_rows<G, kDim, G::kThreads>(tile, view, dim, args, place, chunk, G::kRows, threadIdx.x);
}

template <typename G>
__device__ BandTiles<G> band_tiles(const SharedMemory<G>& shared, const SweepArgs& args,
                                   const Place<G>& place, int chunk, const View& first,
                                   const View& second) {
  return {shared.band[0],
          shared.band[1],
          chunk - args.halo_before,
          args.halo_before + G::kRows + args.halo_after,
          args.stages_tiles ? shared.stage_of(place.warp) : nullptr,
          first,
          second};
}

/// Puts the state that the segment begins with into shared memory (and keeps it in registers).
template <typename G>
__device__ void begin_state(FarState<G>& state, const SharedMemory<G>& shared,
                            const SweepArgs& args, const Place<G>& place) {
  if (args.maps == 0) return;
  for (int row = threadIdx.x; row < G::kMaps * G::kKeyDim; row += G::kThreads) {
    for (int i = 2; i < G::Math::kPad; i += 2) {
      G::Math::store_pair(shared.state + row * G::kValueStride + G::kValueDim + i, 0.f, 0.f);
    }
  }
  state.load(args, place);
  state.publish(shared.state, shared.key_sums);
}

template <typename G>
__global__ void __launch_bounds__(G::kThreads)
    forward_kernel(const __grid_constant__ SweepArgs args) {
  const Place<G> place(args);
  const SharedMemory<G> shared(args, dynamic_shared_memory, /*own_count=*/1, /*backward=*/false);
  load_weights(shared.weights, args, place);
  FarState<G> state;
  begin_state(state, shared, args, place);
  typename G::Elem* q_tile = shared.own[0] + place.warp * 16 * G::kKeyStride;
  typename G::Elem* values = shared.band[1] + args.halo_before * G::kValueStride;
  for (int row = threadIdx.x; row < G::kRows;
       row += G::kThreads) {  // the column of ones beside the values
    for (int i = 0; i < G::Math::kPad; i += 2) {
      G::Math::store_pair(values + row * G::kValueStride + G::kValueDim + i, i == 0 ? 1.f : 0.f,
                          0.f);
    }
  }
  const bool walks = args.causal && args.maps > 0;  // the state grows
#pragma unroll 1
  for (int chunk = place.begin; chunk < place.end; chunk += G::kRows) {
    load_band(shared, args, place, chunk, args.k, args.v);
    load_own<G, G::kKeyDim>(shared.own[0], args.q, args.head_dim, args, place, chunk);
    wait_for_copies();
    __syncthreads();
    if (walks) {
      make_feature_tiles<G, false>(shared.features,
                                   shared.band[0] + args.halo_before * G::kKeyStride, args, place,
                                   chunk, 0);
      __syncthreads();
    }
    ValueRows<G> out;
    clear(out);
#pragma unroll 1
    for (int l = 0; l < args.maps; ++l) {
      far_forward<G>(args, place, chunk, l, q_tile, shared.features + l * G::kFeatureTile, values,
                     shared.state + l * G::kKeyDim * G::kValueStride,
                     shared.weights + l * G::kValueDim, out);
    }
    if (args.has_near) {
      near_forward<G>(args, place, chunk, q_tile,
                      band_tiles(shared, args, place, chunk, args.k, args.v),
                      shared.weights + G::kMaps * G::kValueDim, out);
    }
    store_rows<G>(out, q_tile, args.out, args.value_dim, args, place, chunk, args.partial_out);
    if (walks) state.add(shared.features, values, nullptr);
    __syncthreads();
    if (walks) state.publish(shared.state, shared.key_sums);
  }
  // Causal, the last segment ends with the state after the last token; two-sided, every one holds
  // the total.
  if (args.made.sums && place.end == args.length) state.store(args, place.pair);
}

/// The normalisers of the chunk's rows, [kMaps][kRows].
template <typename G>
__device__ void load_norms(float* norms, const SweepArgs& args, const Place<G>& place, int chunk) {
  for (int i = threadIdx.x; i < args.maps * G::kRows; i += G::kThreads) {
    norms[i] = saved_normaliser(args, place, i / G::kRows, chunk + i % G::kRows);
  }
}
/// ... and their dots.
template <typename G>
__device__ void load_dots(float* dots, const SweepArgs& args, const Place<G>& place, int chunk) {
  for (int i = threadIdx.x; i < args.maps * G::kRows; i += G::kThreads) {
    const int token = chunk + i % G::kRows, map = args.first_map + i / G::kRows;
    dots[i] = token < args.length
                  ? args.row_dots[place.row_index(args, args.all_maps + 1, map, token)]
                  : 0.f;
  }
}

template <typename G, bool kOfQueries>
__global__ void __launch_bounds__(G::kThreads) sum_kernel(const __grid_constant__ SweepArgs args) {
  const Place<G> place(args);
  const SharedMemory<G> shared(args, dynamic_shared_memory, /*own_count=*/0, /*backward=*/true);
  FarState<G> state;
#pragma unroll 1
  for (int chunk = place.begin; chunk < place.end; chunk += G::kRows) {
    load_band(shared, args, place, chunk, kOfQueries ? args.q : args.k,
              kOfQueries ? args.grad_out : args.v);
    if (kOfQueries)
      load_dots(shared.dots, args, place, chunk), load_norms(shared.norms, args, place, chunk);
    wait_for_copies();
    __syncthreads();
    make_feature_tiles<G, kOfQueries>(
        shared.features, shared.band[0], args, place, chunk,
        [&](int l, int row) { return args.far_scale / shared.norms[l * G::kRows + row]; });
    __syncthreads();
    state.add(shared.features, shared.band[1], kOfQueries ? shared.dots : nullptr);
    __syncthreads();
  }
  state.store(args, int64_t(place.pair) * args.segments + place.segment);
}

/// This warp's sums for the gradients of the weights, [kMaps + 1][kValueDim], or none where this
/// kernel makes none. A barrier must follow.
template <typename G>
__device__ float* begin_weight_sums(const SharedMemory<G>& shared, const SweepArgs& args,
                                    const Place<G>& place, bool wanted) {
  if (!args.weight_sums || !wanted) return nullptr;
  constexpr int kSums = (G::kMaps + 1) * G::kValueDim;
  for (int i = threadIdx.x; i < G::kWarps * kSums; i += G::kThreads) shared.weight_sums[i] = 0.f;
  return shared.weight_sums + place.warp * kSums;
}
/// The block's row of args.weight_sums, after a barrier.
template <typename G>
__device__ void store_weight_sums(const SharedMemory<G>& shared, const SweepArgs& args) {
  constexpr int kSums = (G::kMaps + 1) * G::kValueDim;
  for (int i = threadIdx.x; i < kSums; i += G::kThreads) {
    const int map = i / G::kValueDim, channel = i % G::kValueDim;
    const bool near = map == G::kMaps;
    if (channel >= args.value_dim || (near ? !args.has_near : map >= args.maps)) continue;
    float sum = 0.f;
    for (int w = 0; w < G::kWarps; ++w) sum += shared.weight_sums[w * kSums + i];
    const int64_t row =
        blockIdx.x * int64_t(args.all_maps + 1) + (near ? args.all_maps : args.first_map + map);
    args.weight_sums[row * args.all_channels + args.first_channel + channel] = sum;
  }
}

template <typename G>
__global__ void __launch_bounds__(G::kThreads)
    query_kernel(const __grid_constant__ SweepArgs args) {
  const Place<G> place(args);
  const SharedMemory<G> shared(args, dynamic_shared_memory, /*own_count=*/2, /*backward=*/true);
  load_weights(shared.weights, args, place);
  FarState<G> state;
  begin_state(state, shared, args, place);
  float* weight_sums = begin_weight_sums(shared, args, place, args.uniform_weights);
  if (!args.causal) state = FarState<G>();  // from here on the sum over queries
  typename G::Elem* q_tile = shared.own[0] + place.warp * 16 * G::kKeyStride;
  const typename G::Elem* grad_tile = shared.own[1] + place.warp * 16 * G::kValueStride;
  const typename G::Elem* values = shared.band[1] + args.halo_before * G::kValueStride;
  const bool walks = args.causal && args.maps > 0;
#pragma unroll 1
  for (int chunk = place.begin; chunk < place.end; chunk += G::kRows) {
    load_band(shared, args, place, chunk, args.k, args.v);
    load_own<G, G::kKeyDim>(shared.own[0], args.q, args.head_dim, args, place, chunk);
    load_own<G, G::kValueDim>(shared.own[1], args.grad_out, args.value_dim, args, place, chunk);
    load_norms(shared.norms, args, place, chunk);
    wait_for_copies();
    __syncthreads();
    if (walks) {
      make_feature_tiles<G, false>(shared.features,
                                   shared.band[0] + args.halo_before * G::kKeyStride, args, place,
                                   chunk, 0);
      __syncthreads();
    }
    KeyRows<G> dq;
    clear(dq);
#pragma unroll 1
    for (int l = 0; l < args.maps; ++l) {
      far_query<G>(args, place, chunk, l, q_tile, grad_tile, shared.features + l * G::kFeatureTile,
                   values, shared.state + l * G::kKeyDim * G::kValueStride,
                   shared.key_sums + l * G::kKeyDim, shared.weights + l * G::kValueDim,
                   shared.norms + l * G::kRows, shared.dots + l * G::kRows,
                   weight_sums ? weight_sums + l * G::kValueDim : nullptr, dq);
    }
    if (args.has_near) {
      near_query<G>(args, place, chunk, q_tile, grad_tile,
                    band_tiles(shared, args, place, chunk, args.k, args.v),
                    shared.weights + G::kMaps * G::kValueDim,
                    weight_sums ? weight_sums + G::kMaps * G::kValueDim : nullptr, dq);
    }
    store_rows<G>(dq, q_tile, args.dq, args.head_dim, args, place, chunk, args.partial_dq);
    if (walks) {
      state.add(shared.features, values, nullptr);
    } else if (args.maps > 0) {
      __syncthreads();  // every warp's scaled features and dots are there
      state.add(shared.features, shared.own[1], shared.dots);
    }
    __syncthreads();
    if (walks) state.publish(shared.state, shared.key_sums);
  }
  if (!args.causal && args.made.sums)
    state.store(args, int64_t(place.pair) * args.segments + place.segment);
  if (weight_sums) store_weight_sums(shared, args);
}

template <typename G>
__global__ void __launch_bounds__(G::kThreads) key_kernel(const __grid_constant__ SweepArgs args) {
  const Place<G> place(args);
  const SharedMemory<G> shared(args, dynamic_shared_memory, /*own_count=*/2, /*backward=*/true);
  load_weights(shared.weights, args, place);
  FarState<G> state;
  begin_state(state, shared, args, place);
  typename G::Elem* k_tile = shared.own[0] + place.warp * 16 * G::kKeyStride;
  typename G::Elem* v_tile = shared.own[1] + place.warp * 16 * G::kValueStride;
  float* weight_sums = begin_weight_sums(shared, args, place, !args.uniform_weights);
  const typename G::Elem* grads = shared.band[1] + args.halo_before * G::kValueStride;
  const bool walks = args.causal && args.maps > 0;
#pragma unroll 1
  for (int chunk = place.last_chunk(); chunk >= place.begin; chunk -= G::kRows) {
    load_band(shared, args, place, chunk, args.q, args.grad_out);
    load_own<G, G::kKeyDim>(shared.own[0], args.k, args.head_dim, args, place, chunk);
    load_own<G, G::kValueDim>(shared.own[1], args.v, args.value_dim, args, place, chunk);
    if (walks)
      load_dots(shared.dots, args, place, chunk), load_norms(shared.norms, args, place, chunk);
    wait_for_copies();
    __syncthreads();
    if (walks) {
      make_feature_tiles<G, true>(
          shared.features, shared.band[0] + args.halo_before * G::kKeyStride, args, place, chunk,
          [&](int l, int row) { return args.far_scale / shared.norms[l * G::kRows + row]; });
      __syncthreads();
    }
    KeyRows<G> dk;
    ValueRows<G> dv;
    clear(dk), clear(dv);
#pragma unroll 1
    for (int l = 0; l < args.maps; ++l) {
      far_key<G>(args, place, l, k_tile, v_tile, shared.features + l * G::kFeatureTile, grads,
                 shared.state + l * G::kKeyDim * G::kValueStride, shared.key_sums + l * G::kKeyDim,
                 shared.weights + l * G::kValueDim, shared.dots + l * G::kRows,
                 weight_sums ? weight_sums + l * G::kValueDim : nullptr, dk, dv);
    }
    if (args.has_near) {
      ValueRows<G> dv_near;
      const float* weight = shared.weights + G::kMaps * G::kValueDim;
      near_key<G>(args, place, chunk, k_tile, v_tile,
                  band_tiles(shared, args, place, chunk, args.q, args.grad_out), weight, dk,
                  dv_near);
      if (weight_sums)
        add_weight_sums<G>(dv_near, v_tile, place, weight_sums + G::kMaps * G::kValueDim);
      add_weighted<G>(dv, dv_near, {1.f, 1.f}, weight, args);
    }
    __syncwarp();
    store_rows<G>(dk, k_tile, args.dk, args.head_dim, args, place, chunk, args.partial_dk);
    store_rows<G>(dv, v_tile, args.dv, args.value_dim, args, place, chunk, args.partial_dv);
    if (walks) state.add(shared.features, grads, shared.dots);
    __syncthreads();
    if (walks) state.publish(shared.state, shared.key_sums);
  }
  if (weight_sums) store_weight_sums(shared, args);
}

}  // namespace fmmformer::cuda
