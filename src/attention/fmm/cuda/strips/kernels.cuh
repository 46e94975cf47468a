// SPDX-License-Identifier: Apache-2.0
// The sweeps as kernels: a warp walks its strip.
#pragma once

#include "attention/fmm/cuda/strips/cluster_sums.cuh"
#include "attention/fmm/cuda/strips/far_keys.cuh"
#include "attention/fmm/cuda/strips/far_queries.cuh"
#include "attention/fmm/cuda/strips/live_tiles.cuh"
#include "attention/fmm/cuda/weight_gradients.cuh"

namespace fmmformer::cuda::strips {

template <typename G, Sweep kSweep, bool kCausal>
constexpr int kBlocksAtOnce = blocks_at_once<typename G::Math>(G::kDim, G::kMaps, kSweep, kCausal);
/// Of a two-sided block: with as many registers for each as those of several blocks.
template <typename G, Sweep kSweep>
constexpr int kMostThreads =
    most_strips<typename G::Math>(G::kDim, G::kMaps, kSweep, /*in_cluster=*/true) * kWarpSize;

/// What every kernel begins with.
template <typename G>
struct Work {
  const SweepArgs& args;
  const Layout& layout;
  Strip strip;
  FarStep<G> far;
  TileRange walked = {0, 0};  // by all warps of the pair, where it is two-sided
  TileRange dead = {0, 0};    // this warp's share of all other tiles, as if they had no gap

  __device__ Work(const SweepArgs& args, const Layout& layout)
      : args(args), layout(layout), strip(args, G::kTeam), far{args, Weights<G>(layout, args)} {
    far.map = strip.warp;
    far.weights.load(args, strip);
    if (!args.causal) LiveTiles(layout).search(args, strip);
    __syncthreads();
    if (!args.causal) share_out(LiveTiles(layout).range(args, strip));
  }
  /// Gives this warp its share of the pair's live tiles, and of the others.
  __device__ void share_out(const TileRange& live) {
    const int index = strip.segment * strip.count + strip.index,
              count = args.segments * strip.count;
    const TileRange mine = live.share(index, count);
    strip.begin = mine.begin, strip.end = mine.end;
    walked = live;
    dead = TileRange{0, LiveTiles::tiles_of(args) - live.size()}.share(index, count);
  }
  /// body(tile) for the tiles that nobody walks, this warp's share of them.
  template <typename Body>
  __device__ __forceinline__ void each_dead_tile(const Body& body) const {
#pragma unroll 1
    for (int i = dead.begin; i < dead.end; ++i) body(i < walked.begin ? i : i + walked.size());
  }
  __device__ __forceinline__ Rows<G> rows_from(const View& view, int tile) const {
    Rows<G> rows(view, strip);
    rows.skip(tile);
    return rows;
  }
  /// Tiles that a band reaches into beside its own, on a side that it sees so many tokens of.
  __device__ int halo(int reach) const {
    return args.has_near ? (reach + kBlockDim - 1) / kBlockDim : 0;
  }
  /// The tiles of a walk over keys, with queries of its own, or the other way round.
  template <int kOwn, int kNumbers>
  __device__ Tiles<G, false, kOwn, kNumbers> tiles_of_keys(bool with_band) const {
    return {layout,
            args,
            strip,
            args.k,
            args.v,
            args.q,
            args.grad_out,
            with_band ? halo(args.left) : 0,
            with_band ? halo(args.right) : 0};
  }
  template <bool kBackwards, int kOwn>
  __device__ auto tiles_of_queries(bool with_band) const {
    Tiles<G, kBackwards, kOwn, 2 + 2 * G::kMaps> tiles(
        layout, args, strip, args.q, args.grad_out, args.k, args.v,
        with_band ? halo(args.right) : 0, with_band ? halo(args.left) : 0);
    // What keys need to know of queries.
    tiles.numbers.read(0, log_sum_exp());
    tiles.numbers.read(1, args.has_near ? row_dots(G::kMaps) : nullptr);
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l) {
      tiles.numbers.read(kFirstNormOfKeys + l, norms(l));
      tiles.numbers.read(kFirstNormOfKeys + G::kMaps + l, row_dots(l));
    }
    return tiles;
  }
  /// Of states that grow in a walk, the key sums: park() puts them there, fetch() takes them back.
  __device__ KeySums<G> key_sums() const {
    return {shared_at<float>(layout.warps + strip.index * layout.warp_bytes + layout.key_sums)};
  }
  template <bool kKeysAreRows>
  __device__ void park(const FarStates<G, kKeysAreRows>& states) const {
#pragma unroll
    for (int l = 0; l < G::kOwnMaps; ++l)
      key_sums().store(own_map<G>(strip, l), states[l].key_sums);
  }
  template <bool kKeysAreRows>
  __device__ void fetch(FarStates<G, kKeysAreRows>& states) const {
    __syncwarp();
#pragma unroll
    for (int l = 0; l < G::kOwnMaps; ++l) key_sums().load(own_map<G>(strip, l), states[l].key_sums);
  }
  __device__ const float* log_sum_exp() const {
    return args.has_near ? args.log_sum_exp + strip.row_index(args, 1, 0) : nullptr;
  }
  __device__ const float* norms(int map) const {
    return far.row_sums() ? args.normalisers + strip.row_index(args, G::kMaps, map) : nullptr;
  }
  __device__ float* row_dots(int field) const {
    return args.row_dots + strip.row_index(args, G::kFields, field);
  }
  /// body(token) in one lane each, for the tokens of a tile.
  template <typename Body>
  __device__ __forceinline__ void each_token(int tile, const Body& body) const {
    const int token = tile * kBlockDim + lane_id();
    if (lane_id() < kBlockDim && token < args.length) body(token);
  }
};

/// The sums over the warp's strip: of its keys, or its queries; zeros unless `wanted`.
template <typename G, bool kKeysAreRows>
__device__ __forceinline__ void sum_keys(Work<G>& work, FarStates<G, kKeysAreRows>& states,
                                         bool wanted) {
  clear_states<G, kKeysAreRows>(states);
  if (!wanted) return;
  auto tiles = work.template tiles_of_keys<0, 0>(/*with_band=*/false);
  walk(tiles, work.strip.begin, work.strip.end, [&](int tile) {
    work.far.tile = tile, work.far.live = tiles.live();
    add_keys<G, kKeysAreRows>(work.far, tiles.band_tile(0, tile), tiles.band_tile(1, tile), states);
  });
}
template <typename G>
__device__ __forceinline__ void sum_queries(Work<G>& work, KeyStates<G>& states, bool wanted) {
  clear_states<G, false>(states);
  if (!wanted) return;
  auto tiles = work.template tiles_of_queries<false, 0>(/*with_band=*/false);
  walk(tiles, work.strip.begin, work.strip.end, [&](int tile) {
    work.far.tile = tile, work.far.live = tiles.live();
    add_queries<G>(work.far, tiles, states);
  });
}

template <typename G, bool kOfQueries>
__global__ void __launch_bounds__(kMostStrips* kWarpSize, kBlocksAtOnce<G, Sweep::kSumOfKeys, true>)
    sum_kernel(const __grid_constant__ SweepArgs args, const __grid_constant__ Layout layout) {
  Work<G> work(args, layout);
  FarStates<G, false> states;
  if constexpr (kOfQueries) {
    sum_queries(work, states, true);
  } else {
    sum_keys<G, false>(work, states, true);
  }
  store_sum<G, false>(states, args.made, layout, args, work.strip);
}

template <typename G, bool kCausal>
__global__ void __launch_bounds__(kCausal ? kMostStrips* kWarpSize
                                          : kMostThreads<G, Sweep::kForward>,
                                  kCausal ? kBlocksAtOnce<G, Sweep::kForward, kCausal> : 1)
    forward_kernel(const __grid_constant__ SweepArgs args, const __grid_constant__ Layout layout) {
  Work<G> work(args, layout);
  const Strip& strip = work.strip;
  ForwardStates<G> states;
  const FixedSums<G> fixed(layout);
  const KeySums<G> key_sums = work.key_sums();
  if constexpr (kCausal) {
    sum_keys<G, false>(work, states, strip.index + 1 < strip.count);
    begin_states<G, false>(states, Others::kBefore, layout, args, strip);
    work.park(states);
  } else if (args.start.source != StateSource::kNothing) {
    fixed.gather(args, strip, args.made.sums && strip.segment == args.segments - 1);
  } else {
    sum_keys<G, false>(work, states, true);
    sum_over_cluster(states, fixed, layout, args, strip, args.made.sums != nullptr);
  }
  auto tiles = work.template tiles_of_keys</*kOwn=*/1, /*kNumbers=*/0>(/*with_band=*/true);
  const Band band(args, args.left, args.right);
  Rows<G> out = work.rows_from(args.out, strip.begin);
  float* log_sum_exp = args.log_sum_exp + strip.row_index(args, 1, 0);
  float* normalisers = args.normalisers + strip.row_index(args, G::kMaps, 0);
  const auto write_dead = [&](int tile, const Rows<G>& to) {
    write_zeros(to, tile, args.length);
    work.each_token(tile, [&](int token) {
      if (args.has_near) log_sum_exp[token] = INFINITY;
      for (int l = 0; work.far.row_sums() && l < G::kMaps; ++l)
        normalisers[int64_t(l) * args.length + token] = 1.f;
    });
  };
  if constexpr (!kCausal) {
    work.each_dead_tile([&](int tile) { write_dead(tile, work.rows_from(args.out, tile)); });
  }
  walk(tiles, strip.begin, strip.end, [&](int tile) {
    const uint32_t live = tiles.live();
    work.far.tile = tile, work.far.live = live;
    if (live == 0) {
      write_dead(tile, out), out.skip(1);
      return;
    }
    ElemOf<G>* q_tile = tiles.own_tile(0, tile);
    Blocks<G> sum;
    clear(sum);
    if (args.has_near)
      near_forward<G>(sum, q_tile, band, tiles, strip, tile, work.far.weights, log_sum_exp);
    if constexpr (kCausal) {
      far_forward<G>(work.far, q_tile, tiles.band_tile(0, tile), tiles.band_tile(1, tile), states,
                     key_sums, normalisers, sum);
    } else {
      far_forward<G>(work.far, q_tile, fixed, normalisers, sum);
    }
    write_rows(out, sum, q_tile, tile, live, args.length, 1);
  });
  if (kCausal && args.made.sums && strip.last(args)) {
    work.fetch(states);
    store<G, false>(states, args, strip);
  }
}

/// A warp's strip of queries. `states`: causal, of the keys so far; two-sided, they become those of
/// the queries.
template <typename G, bool kCausal>
__device__ __forceinline__ void sweep_queries(Work<G>& work, FarStates<G, kCausal>& states) {
  const SweepArgs& args = work.args;
  const Layout& layout = work.layout;
  const Strip& strip = work.strip;
  const FixedSums<G> fixed(layout);
  const KeySums<G> key_sums = work.key_sums();
  if constexpr (kCausal) {
    sum_keys<G, true>(work, states, strip.index + 1 < strip.count);
    begin_states<G, true>(states, Others::kBefore, layout, args, strip);
  } else {
    fixed.gather(args, strip, /*writes=*/false);
    clear_states<G, false>(states);
  }
  work.park(states);
  constexpr bool kMakesNorms = kCausal && G::kCareful;  // see far_query
  constexpr int kNumbers = kMakesNorms ? 1 : 1 + G::kMaps;
  auto tiles = work.template tiles_of_keys</*kOwn=*/2, kNumbers>(/*with_band=*/true);
  tiles.numbers.read(0, work.log_sum_exp());
#pragma unroll
  for (int l = 0; !kMakesNorms && l < G::kMaps; ++l)
    tiles.numbers.read(kFirstNormOfQueries + l, work.norms(l));
  const Band band(args, args.left, args.right);
  Rows<G> to = work.rows_from(args.dq, strip.begin);
  float* row_dots = work.row_dots(0);
  const ByWeight<G> by_weight(layout, strip);
  const auto write_dead = [&](int tile, const Rows<G>& to) {
    write_zeros(to, tile, args.length);
    work.each_token(tile, [&](int token) {
      for (int field = 0; field < G::kFields; ++field)
        row_dots[int64_t(field) * args.length + token] = 0.f;
    });
  };
  if constexpr (!kCausal) {
    work.each_dead_tile([&](int tile) { write_dead(tile, work.rows_from(args.dq, tile)); });
  }
  walk(tiles, strip.begin, strip.end, [&](int tile) {
    const uint32_t live = tiles.live();
    work.far.tile = tile, work.far.live = live;
    if (live == 0) {
      write_dead(tile, to), to.skip(1);
      return;
    }
    ElemOf<G>*q_tile = tiles.own_tile(0, tile), *grad_tile = tiles.own_tile(1, tile);
    Blocks<G> dq;
    clear(dq);
    if (args.has_near) {
      by_weight.add(G::kMaps, near_query<G>(dq, q_tile, grad_tile, band, tiles, strip, tile,
                                            work.far.weights, tiles.number(0, tile * kBlockDim),
                                            row_dots + int64_t(G::kMaps) * args.length));
    }
    if constexpr (kCausal) {
      far_query<G>(work.far, tiles, q_tile, grad_tile, tiles.band_tile(0, tile),
                   tiles.band_tile(1, tile), states, key_sums, row_dots, by_weight, dq);
    } else {
      far_query<G>(work.far, tiles, q_tile, grad_tile, fixed, states, key_sums, row_dots, by_weight,
                   dq);
    }
    write_rows(to, dq, q_tile, tile, live, args.length, 1);
  });
  work.fetch(states);
  if (args.weight_sums && uniform_weights<G>(args))
    store_uniform_weight_sums<G>(layout, args, strip);
}
template <typename G, bool kCausal>
__global__ void __launch_bounds__(kMostStrips* kWarpSize,
                                  kBlocksAtOnce<G, Sweep::kQueries, kCausal>)
    query_kernel(const __grid_constant__ SweepArgs args, const __grid_constant__ Layout layout) {
  Work<G> work(args, layout);
  FarStates<G, kCausal> states;
  sweep_queries<G, kCausal>(work, states);
  if constexpr (!kCausal) store_sum<G, false>(states, args.made, layout, args, work.strip);
}

/// Behind the blocks of a key sweep come those that make the weights' gradients, one a number, from
/// what the query sweep has summed. Whether this is one.
template <typename G>
__device__ __forceinline__ bool reduces_instead(const SweepArgs& args) {
  const int64_t number = blockIdx.x - args.batch * args.heads * args.segments;
  if (number < 0) return false;
  reduce_weight_sums(args, G::kDim, number);
  return true;
}

/// A warp's strip of keys, backwards; two-sided, with the sums of all queries in shared memory.
template <typename G, bool kCausal>
__device__ __forceinline__ void sweep_keys(Work<G>& work) {
  const SweepArgs& args = work.args;
  const Layout& layout = work.layout;
  const Strip& strip = work.strip;
  KeyStates<G> states;
  const FixedSums<G> fixed(layout);
  const KeySums<G> key_sums = work.key_sums();
  if constexpr (kCausal) {
    sum_queries(work, states, strip.index > 0);
    begin_states<G, false>(states, Others::kAfter, layout, args, strip);
    work.park(states);
  }
  auto tiles = work.template tiles_of_queries</*kBackwards=*/true, /*kOwn=*/2>(/*with_band=*/true);
  const Band band(args, args.right, args.left);
  Rows<G> to_k = work.rows_from(args.dk, strip.end - 1),
          to_v = work.rows_from(args.dv, strip.end - 1);
  KeyResults<G> results{{}, {}, WeightSums<G>(layout, strip)};
  results.weight_sums.clear();
  const auto write_dead = [&](int tile, const Rows<G>& rows_k, const Rows<G>& rows_v) {
    write_zeros(rows_k, tile, args.length), write_zeros(rows_v, tile, args.length);
  };
  if constexpr (!kCausal) {
    work.each_dead_tile([&](int tile) {
      write_dead(tile, work.rows_from(args.dk, tile), work.rows_from(args.dv, tile));
    });
  }
  walk(tiles, strip.begin, strip.end, [&](int tile) {
    const uint32_t live = tiles.live();
    work.far.tile = tile, work.far.live = live;
    if (live == 0) {
      write_dead(tile, to_k, to_v), to_k.skip(-1), to_v.skip(-1);
      return;
    }
    ElemOf<G>*k_tile = tiles.own_tile(0, tile), *v_tile = tiles.own_tile(1, tile);
    clear(results.dk), clear(results.dv);
    if (args.has_near) {
      Blocks<G> value_sum;
      clear(value_sum);
      near_key<G>(results.dk, value_sum, k_tile, v_tile, band, tiles, strip, tile, work.far.weights,
                  0, 1);
      results.add_values(work.far, G::kMaps, v_tile, value_sum);
    }
    if constexpr (kCausal) {
      far_key<G>(work.far, tiles, k_tile, v_tile, states, key_sums, results);
    } else {
      far_key<G>(work.far, k_tile, v_tile, fixed, results);
    }
    write_rows(to_k, results.dk, k_tile, tile, live, args.length, -1);
    write_rows(to_v, results.dv, v_tile, tile, live, args.length, -1);
  });
  results.weight_sums.store(layout, args);
}
template <typename G, bool kCausal>
__global__ void __launch_bounds__(kMostStrips* kWarpSize, kBlocksAtOnce<G, Sweep::kKeys, kCausal>)
    key_kernel(const __grid_constant__ SweepArgs args, const __grid_constant__ Layout layout) {
  if (reduces_instead<G>(args)) return;
  Work<G> work(args, layout);
  if constexpr (!kCausal) FixedSums<G>(layout).gather(args, work.strip, /*writes=*/false);
  sweep_keys<G, kCausal>(work);
}

/// Both, two-sided.
template <typename G>
__global__ void __launch_bounds__(kMostThreads<G, Sweep::kBoth>, 1)
    backward_kernel(const __grid_constant__ SweepArgs args, const __grid_constant__ Layout layout) {
  Work<G> work(args, layout);
  FarStates<G, false> states;
  sweep_queries<G, false>(work, states);
  sum_over_cluster(states, FixedSums<G>(layout), layout, args, work.strip, /*writes=*/false);
  sweep_keys<G, false>(work);
}

}  // namespace fmmformer::cuda::strips
