// SPDX-License-Identifier: Apache-2.0
// The sweeps as kernels: a thread block walks a segment in steps of sixteen tokens.
#pragma once

#include "attention/fmm/cuda/roles/far.cuh"
#include "attention/fmm/cuda/roles/near.cuh"
#include "attention/fmm/cuda/roles/results.cuh"

namespace fmmformer::cuda::roles {

enum class Sweep { kForward, kQueries, kKeys, kSumOfKeys, kSumOfQueries };

/// The layout of a sweep's shared memory.
template <typename G>
Layout layout_of(Sweep sweep, const SweepArgs& args) {
  Layout layout;
  int used = 0;
  const auto take = [&](bool wanted, int64_t bytes) {
    if (!wanted) return -1;
    const int at = used;
    used += static_cast<int>((bytes + 15) / 16 * 16);
    return at;
  };
  const bool sums = sweep == Sweep::kSumOfKeys || sweep == Sweep::kSumOfQueries;
  const bool backward = sweep == Sweep::kQueries || sweep == Sweep::kKeys;
  layout.before = args.halo_before / kBlockDim, layout.after = args.halo_after / kBlockDim;
  layout.slots = 2;  // the next tile is under way
  while (layout.slots < layout.before + layout.after + 2) layout.slots *= 2;
  const int tile = Tiles<G>::kTile * sizeof(Elem), own_slots = Tiles<G>::kOwnSlots;
  for (int which = 0; which < 2; ++which) {
    layout.band[which] = take(true, layout.slots * tile);
    layout.own[which] = take(!sums && (which == 0 || backward), own_slots * tile);
  }
  layout.live = take(args.token_mask, (layout.slots + G::kSlices) * sizeof(uint32_t));
  layout.numbers = take(sweep == Sweep::kKeys && args.has_near,
                        (layout.slots + G::kSlices) * 2 * kBlockDim * sizeof(float));
  layout.stage = take(args.stages_tiles, G::kSlices * 2 * tile);
  layout.rows = take(true, 4 * sizeof(Rows));
  layout.written = take(true, 2 * sizeof(Rows));
  const int fields = args.maps + (args.has_near ? 1 : 0);
  layout.weights = take(true, fields * G::kValueDim * sizeof(float));
  layout.weight_sums = take(sweep == Sweep::kKeys && args.weight_sums && !args.uniform_weights,
                            fields * Role::warps<G>(args) * kWarpSize * sizeof(float4));
  layout.exchanges = take(true, kExchanges * Role::far_count<G>(args) * kBlockDim * sizeof(float));
  for (int buffer = 0; buffer < G::kResultBuffers; ++buffer) {
    const int begin = used;
    const int key_rows =
        take(backward, Role::key_results<G>(args) * Results<G::kKeyDim>::kSize * sizeof(float));
    const int value_rows =
        take(sweep == Sweep::kForward || sweep == Sweep::kKeys,
             Role::value_results<G>(args) * Results<G::kValueDim>::kSize * sizeof(float));
    if (buffer == 0) {
      layout.key_rows = key_rows, layout.value_rows = value_rows;
      layout.buffer = used - begin;
    }
  }
  layout.bytes = used;
  return layout;
}

/// What every kernel begins with.
template <typename G>
struct Work {
  const SweepArgs& args;
  const Layout& layout;
  Place<G> place;
  Role role;
  Tiles<G> tiles;
  int buffer = 0;  // bytes: of the results of this step

  __device__ Work(const SweepArgs& args, const Layout& layout)
      : args(args),
        layout(layout),
        place(args),
        role(Role::of_this_warp<G>(args)),
        tiles{layout, args, place, role.slice} {
    load_blend_weights();
  }
  __device__ int fields() const { return args.maps + (args.has_near ? 1 : 0); }
  /// Where the role's channels begin, of q and k, and of v.
  __device__ int channel() const { return role.part * G::kPartDim; }
  __device__ int value_channel() const { return role.slice * G::kSliceDim; }
  /// Blend weights of one map, or (maps) of the near field.
  __device__ const float* weights(int field) const {
    return shared_at<float>(layout.weights) + field * G::kValueDim;
  }
  __device__ Results<G::kKeyDim> key_rows() const {
    return {shared_at<float>(layout.key_rows + buffer), Role::key_results<G>(args)};
  }
  __device__ Results<G::kValueDim> value_rows() const {
    return {shared_at<float>(layout.value_rows + buffer), Role::value_results<G>(args)};
  }
  /// Where the role's channels of the results are.
  __device__ float* key_result() const {
    return role.far ? key_rows().of(role.map * G::kSlices + role.slice) + channel()
                    : key_rows().of(args.maps * G::kSlices) + value_channel();
  }
  __device__ float* value_result() const {
    const int near = args.maps * Role::parts<G>(args);
    return value_rows().of(role.far ? role.index / G::kSlices : near) + value_channel();
  }
  __device__ FarStep<G> far_step() const {
    return {args, place, role, weights(role.map) + value_channel(),
            shared_at<float>(layout.exchanges)};
  }
  __device__ void writes_to(int which, const View& view, int dim) const {
    if (threadIdx.x == 0) shared_at<Rows>(layout.written)[which] = Rows(view, dim, place);
  }
  __device__ const Rows& written(int which) const { return shared_at<Rows>(layout.written)[which]; }

 private:
  __device__ void load_blend_weights() const {
    float* to = shared_at<float>(layout.weights);
    for (int i = threadIdx.x; i < fields() * G::kValueDim; i += blockDim.x) {
      const int field = i / G::kValueDim, channel = i % G::kValueDim;
      to[i] = channel >= args.value_dim ? 0.f
              : field == args.maps
                  ? weight_value(args.near_weight, 0, place.h, channel)
                  : weight_value(args.far_weight, args.first_map + field, place.h, channel);
    }
  }
};

/// Walks the segment's tiles, the keys' sweep from the last one on: body(tile, its live tokens), a
/// barrier, finish(tile, live tokens), with the next tiles under way. Every warp must walk,
/// wherever in the kernel.
template <bool kBackwards, typename G, typename Body, typename Finish>
__device__ __forceinline__ void walk(Work<G>& work, const Body& body, const Finish& finish) {
  const Layout& layout = work.layout;
  const int first = work.place.begin / kBlockDim, last = (work.place.end - 1) / kBlockDim;
  const int direction = kBackwards ? -1 : 1, start = kBackwards ? last : first;
  // The band's ring fills before the first step; `ahead`: how far its newest tile is.
  const int ahead = (kBackwards ? layout.before : layout.after) + 1;
  const int fill = layout.before + layout.after + 1;
  __syncthreads();  // Work's and the caller's notes are there
#pragma unroll 1
  for (int step = -fill; step <= last - first; ++step) {
    const int tile = start + direction * step;
    const bool more = step < last - first;
    work.tiles.begin(more ? tile + direction * ahead : -1,
                     step >= -1 && more ? tile + direction : -1);
    uint32_t live = 0;
    if (step >= 0) {
      work.tiles.current = tile;
      live = work.tiles.live(tile);
      body(tile, live);
    }
    if (step < -1) continue;
    wait_for_copies();
    __syncthreads();
    if (step < 0) continue;
    finish(tile, live);
    if (G::kResultBuffers == 1) {
      __syncthreads();
    } else {
      work.buffer = layout.buffer - work.buffer;
    }
  }
}

template <typename G, bool kCausal>
__global__ void __launch_bounds__(G::kMostThreads,
                                  kCausal ? G::kBlocksAtOnce : G::kFixedBlocksAtOnce)
    forward_kernel(const __grid_constant__ SweepArgs args, const __grid_constant__ Layout layout) {
  Work<G> work(args, layout);
  const Tiles<G>& tiles = work.tiles;
  tiles.read_from(args.k, args.v, args.q, View());
  work.writes_to(0, args.out, args.value_dim);
  const auto finish = [&](int tile, uint32_t live) {
    write_value_rows<G>(work.value_rows(), Role::parts<G>(args), work.weights(0), work.written(0),
                        args, work.place, tile * kBlockDim, live, args.partial_out,
                        [](int, int, int, const float4&) {});
  };
  if (!work.role.far) {
    NearStep<G> near(args, work.place, tiles, nullptr, args.left, args.right, work.role.slice);
    walk<false>(
        work,
        [&](int tile, uint32_t) {
          near.tile = tile;
          if (work.role.near) near_forward<G>(near, work.value_result());
        },
        finish);
    return;
  }
  ForwardState<G> state;
  state.clear();
  state.load(args, work.place, work.role);
  // Two-sided, every segment holds the total; causal, the last one ends with it.
  const bool keeps = args.made.sums && work.place.end == args.length;
  if (!kCausal && keeps) state.store(args, work.place.pair, work.role);
  const FixedState<ForwardState<G>> fixed(state);
  FarStep<G> far = work.far_step();
  const int channel = work.channel(), value_channel = work.value_channel();
  walk<false>(
      work,
      [&](int tile, uint32_t live) {
        far.first = tile * kBlockDim, far.live_rows = live;
        far_forward<G, kCausal>(
            far, tiles.own_tile(0, tile) + channel, tiles.band_tile(0, tile) + channel,
            tiles.band_tile(1, tile) + value_channel, state, fixed, work.value_result());
      },
      finish);
  if (kCausal && keeps) state.store(args, work.place.pair, work.role);
}

template <typename G, bool kOfQueries>
__global__ void __launch_bounds__(G::kMostThreads, G::kBlocksAtOnce)
    sum_kernel(const __grid_constant__ SweepArgs args, const __grid_constant__ Layout layout) {
  Work<G> work(args, layout);
  const Tiles<G>& tiles = work.tiles;
  tiles.read_from(kOfQueries ? args.q : args.k, kOfQueries ? args.grad_out : args.v, View(),
                  View());
  ForwardState<G> state;
  state.clear();
  FarStep<G> far = work.far_step();
  walk<false>(
      work,
      [&](int tile, uint32_t live) {
        if (!work.role.far) return;
        far.first = tile * kBlockDim, far.live_rows = live;
        const Elem *keys = tiles.band_tile(0, tile) + work.channel(),
                   *values = tiles.band_tile(1, tile) + work.value_channel();
        kOfQueries ? add_queries<G>(far, keys, values, state)
                   : add_keys<G>(far, keys, values, state);
      },
      [](int, uint32_t) {});
  if (work.role.far)
    state.store(args, int64_t(work.place.pair) * args.segments + work.place.segment, work.role);
}

/// Writes the gradient of a weight that is equal for all channels into the first one's place in
/// args.weight_sums; the others become zeros.
__device__ inline void store_weight_sum(const SweepArgs& args, int field, float sum) {
  const int64_t row = (blockIdx.x * int64_t(args.all_maps + 1) + field) * args.all_channels;
  for (int channel = lane_id(); channel < args.value_dim; channel += kWarpSize) {
    args.weight_sums[row + args.first_channel + channel] = channel == 0 ? sum : 0.f;
  }
}
/// The sum over a warp's sixteen rows, of numbers that lanes of equal g share.
__device__ __forceinline__ float sum_of_rows(float x) {
#pragma unroll
  for (int other = 4; other < kWarpSize; other *= 2) x += __shfl_xor_sync(~0u, x, other);
  return x;
}

template <typename G, bool kCausal>
__global__ void __launch_bounds__(G::kMostThreads, G::kBlocksAtOnce)
    query_kernel(const __grid_constant__ SweepArgs args, const __grid_constant__ Layout layout) {
  Work<G> work(args, layout);
  const Tiles<G>& tiles = work.tiles;
  const Role role = work.role;
  tiles.read_from(args.k, args.v, args.q, args.grad_out);
  work.writes_to(0, args.dq, args.head_dim);
  const auto finish = [&](int tile, uint32_t live) {
    const int first = tile * kBlockDim;
    write_key_rows<G>(work.key_rows(), work.written(0), args, work.place, first, live,
                      args.partial_dq);
  };
  float by_weight = 0.f;
  const bool sums_weights = args.weight_sums && args.uniform_weights;
  if (!role.far) {
    NearStep<G> near(args, work.place, tiles, work.weights(args.maps), args.left, args.right,
                     role.slice);
    walk<false>(
        work,
        [&](int tile, uint32_t) {
          near.tile = tile;
          if (role.near) by_weight += near_query<G>(near, work.key_result());
        },
        finish);
    if (sums_weights && role.near && role.slice == 0)
      store_weight_sum(args, args.all_maps, sum_of_rows(by_weight));
    return;
  }
  QueryState<G> state;
  state.clear();
  state.load(args, work.place, role);
  const FixedState<QueryState<G>> fixed(state);
  if (!kCausal) state.clear();  // from here on it holds sums over queries
  const int channel = work.channel(), value_channel = work.value_channel();
  FarStep<G> far = work.far_step();
  walk<false>(
      work,
      [&](int tile, uint32_t live) {
        far.first = tile * kBlockDim, far.live_rows = live;
        by_weight += far_query<G, kCausal>(
            far, tiles.own_tile(0, tile) + channel, tiles.own_tile(1, tile) + value_channel,
            tiles.band_tile(0, tile) + channel, tiles.band_tile(1, tile) + value_channel, state,
            fixed, work.key_result());
      },
      finish);
  if (sums_weights) {
    float sums[2] = {sum_of_rows(by_weight), 0.f};
    far.add_parts_and_slices(sums, Exchange::kRowSums);
    if (role.leads()) store_weight_sum(args, args.first_map + role.map, sums[0]);
  }
  if (kCausal || !args.made.sums) return;
  state.store(args, int64_t(work.place.pair) * args.segments + work.place.segment, role);
}

template <typename G, bool kCausal>
__global__ void __launch_bounds__(G::kMostThreads,
                                  kCausal ? G::kBlocksAtOnce : G::kFixedBlocksAtOnce)
    key_kernel(const __grid_constant__ SweepArgs args, const __grid_constant__ Layout layout) {
  Work<G> work(args, layout);
  const Tiles<G>& tiles = work.tiles;
  const Role role = work.role;
  tiles.read_from(args.q, args.grad_out, args.k, args.v);
  work.writes_to(0, args.dk, args.head_dim), work.writes_to(1, args.dv, args.value_dim);
  const WeightSums weight_sums = {
      layout.weight_sums < 0 ? nullptr : shared_at<float4>(layout.weight_sums), work.fields()};
  weight_sums.clear();
  const auto finish = [&](int tile, uint32_t live) {
    const int first = tile * kBlockDim;
    write_key_rows<G>(work.key_rows(), work.written(0), args, work.place, first, live,
                      args.partial_dk);
    const Elem* v_tile = tiles.own_tile(1, tile);
    write_value_rows<G>(work.value_rows(), Role::parts<G>(args), work.weights(0), work.written(1),
                        args, work.place, first, live, args.partial_dv,
                        [&](int index, int row, int channel, const float4& part) {
                          if (layout.weight_sums >= 0)
                            weight_sums.add(index, part, v_tile + row * G::kValueStride + channel);
                        });
  };
  if (!role.far) {
    NearStep<G> near(args, work.place, tiles, work.weights(args.maps), args.right, args.left,
                     role.slice);
    walk<true>(
        work,
        [&](int tile, uint32_t) {
          near.tile = tile;
          if (!role.near) return;
          near_key<G>(near, work.key_result(), work.value_result());
        },
        finish);
  } else {
    KeyState<G> state;
    state.clear();
    state.load(args, work.place, role);
    const FixedState<KeyState<G>> fixed(state);
    const int channel = work.channel(), value_channel = work.value_channel();
    FarStep<G> far = work.far_step();
    walk<true>(
        work,
        [&](int tile, uint32_t live) {
          far.first = tile * kBlockDim, far.live_rows = live;
          far_key<G, kCausal>(
              far, tiles.band_tile(0, tile) + channel, tiles.band_tile(1, tile) + value_channel,
              tiles.own_tile(0, tile) + channel, tiles.own_tile(1, tile) + value_channel, state,
              fixed, work.key_result(), work.value_result());
        },
        finish);
  }
  if (layout.weight_sums < 0) return;
  __syncthreads();
  weight_sums.template store<G>(args);
}

}  // namespace fmmformer::cuda::roles
