// SPDX-License-Identifier: Apache-2.0
// Causal sweeps whose warps form teams: all warps of a block walk one strip, each with a field of
// its own, a feature map or, the last one, the band.
//
// For fp32 and heads of 32 channels. The states of three maps are 96 registers, and an operand is
// two for every number: more than a warp has. A team's warp keeps one state; tiles lie in shared
// memory once for all, and no strip has to be summed before others can begin. The price is a
// barrier more a step: the fields' parts of a result meet in shared memory, where all threads add
// them up.
#pragma once

#include "attention/fmm/cuda/strips/kernels.cuh"

namespace fmmformer::cuda::strips {

/// What every warp has of sixteen rows of a result, [warps][16][kDim].
template <typename G>
struct Parts {
  float* parts;

  __device__ Parts(const Layout& layout, int which)
      : parts(shared_at<float>(layout.parts[which])) {}
  __device__ __forceinline__ void store(const Strip& strip, const Blocks<G>& rows) const {
    float* to = parts + strip.warp * G::kTile;
#pragma unroll
    for (int i = 0; i < G::kBlocks * 4; ++i) {
      const int b = i / 4, n = i / 2 % 2, r = i % 2;
      store_pair(to + offset_of<G>(row_of(2 * r), b * kBlockDim + column_of(n, 0)),
                 rows[b][n][2 * r], rows[b][n][2 * r + 1]);
    }
  }
  /// Their sums to memory, by all threads; zeros for dead rows.
  __device__ __forceinline__ void write(Rows<G>& to, const SweepArgs& args, int tile, uint32_t live,
                                        int direction) const {
    constexpr int kFours = G::kDim / 4;
    for (int i = threadIdx.x; i < kBlockDim * kFours; i += blockDim.x) {
      const int row = i / kFours, column = i % kFours * 4;
      const float4* part = reinterpret_cast<const float4*>(parts + offset_of<G>(row, column));
      float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
      if (live >> row & 1) {
#pragma unroll
        for (int field = 0; field < G::kFields; ++field, part += G::kTile / 4) {
          if (field == G::kMaps && !args.has_near) break;
          sum.x += part->x, sum.y += part->y, sum.z += part->z, sum.w += part->w;
        }
      }
      if (tile * kBlockDim + row < args.length)
        *reinterpret_cast<float4*>(to.next +
                                   (row * static_cast<int>(to.view.row_stride) + column)) = sum;
    }
    to.skip(direction);
  }
};

/// Walks the strip: live(tile) leaves this warp's parts, dead(token) says what a dead tile's tokens
/// have, and write(tile, live) adds up and writes.
template <typename G, typename T, typename Live, typename Dead, typename Write>
__device__ __forceinline__ void walk_together(Work<G>& work, T& tiles, const Live& live_tile,
                                              const Dead& dead_token, const Write& write) {
  walk(tiles, work.strip.begin, work.strip.end, [&](int tile) {
    const uint32_t live = tiles.live();
    work.far.tile = tile, work.far.live = live;
    if (live != 0) {
      live_tile(tile);
      tiles.meet();
    } else {
      work.each_token(tile, dead_token);
    }
    write(tile, live);
  });
}

template <typename G>
constexpr int kTeamThreads = G::kFields* kWarpSize;

template <typename G>
__global__ void __launch_bounds__(kTeamThreads<G>, kTeamsAtOnce)
    team_forward_kernel(const __grid_constant__ SweepArgs args,
                        const __grid_constant__ Layout layout) {
  Work<G> work(args, layout);
  const Strip& strip = work.strip;
  ForwardStates<G> states;
  begin_states<G, false>(states, Others::kNone, layout, args, strip);
  auto tiles = work.template tiles_of_keys</*kOwn=*/1, /*kNumbers=*/0>(/*with_band=*/true);
  const Parts<G> parts(layout, 0);
  Rows<G> out(args.out, strip);
  out.skip(strip.begin);
  const auto write = [&](int tile, uint32_t live) { parts.write(out, args, tile, live, 1); };
  if (strip.warp < G::kMaps) {
    const KeySums<G> key_sums = work.key_sums();
    work.park(states);
    float* normalisers = args.normalisers + strip.row_index(args, G::kMaps, 0);
    walk_together(
        work, tiles,
        [&](int tile) {
          Blocks<G> sum;
          clear(sum);
          far_forward<G>(work.far, tiles.own_tile(0, tile), tiles.band_tile(0, tile),
                         tiles.band_tile(1, tile), states, key_sums, normalisers, sum);
          parts.store(strip, sum);
        },
        [&](int token) {
          if (work.far.row_sums()) normalisers[int64_t(strip.warp) * args.length + token] = 1.f;
        },
        write);
    if (args.made.sums && strip.last(args)) {
      work.fetch(states);
      store<G, false>(states, args, strip);
    }
  } else {
    const Band band(args, args.left, args.right);
    float* log_sum_exp = args.log_sum_exp + strip.row_index(args, 1, 0);
    walk_together(
        work, tiles,
        [&](int tile) {
          Blocks<G> sum;
          clear(sum);
          near_forward<G>(sum, tiles.own_tile(0, tile), band, tiles, strip, tile, work.far.weights,
                          log_sum_exp);
          parts.store(strip, sum);
        },
        [&](int token) { log_sum_exp[token] = INFINITY; }, write);
  }
}

template <typename G>
__global__ void __launch_bounds__(kTeamThreads<G>, kTeamsAtOnce)
    team_query_kernel(const __grid_constant__ SweepArgs args,
                      const __grid_constant__ Layout layout) {
  Work<G> work(args, layout);
  const Strip& strip = work.strip;
  QueryStates<G> states;
  begin_states<G, true>(states, Others::kNone, layout, args, strip);
  auto tiles =
      work.template tiles_of_keys</*kOwn=*/2, /*kNumbers=*/1 + G::kMaps>(/*with_band=*/true);
  tiles.numbers.read(0, work.log_sum_exp());
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l) tiles.numbers.read(kFirstNormOfQueries + l, work.norms(l));
  const Parts<G> parts(layout, 0);
  Rows<G> to(args.dq, strip);
  to.skip(strip.begin);
  float* own_dots = work.row_dots(strip.warp);
  const ByWeight<G> by_weight(layout, strip);
  const auto dead = [&](int token) { own_dots[token] = 0.f; };
  const auto write = [&](int tile, uint32_t live) { parts.write(to, args, tile, live, 1); };
  if (strip.warp < G::kMaps) {
    const KeySums<G> key_sums = work.key_sums();
    work.park(states);
    walk_together(
        work, tiles,
        [&](int tile) {
          Blocks<G> dq;
          clear(dq);
          far_query<G>(work.far, tiles, tiles.own_tile(0, tile), tiles.own_tile(1, tile),
                       tiles.band_tile(0, tile), tiles.band_tile(1, tile), states, key_sums,
                       work.row_dots(0), by_weight, dq);
          parts.store(strip, dq);
        },
        dead, write);
  } else {
    const Band band(args, args.left, args.right);
    walk_together(
        work, tiles,
        [&](int tile) {
          Blocks<G> dq;
          clear(dq);
          by_weight.add(0, near_query<G>(dq, tiles.own_tile(0, tile), tiles.own_tile(1, tile), band,
                                         tiles, strip, tile, work.far.weights,
                                         tiles.number(0, tile * kBlockDim), own_dots));
          parts.store(strip, dq);
        },
        dead, write);
  }
  if (args.weight_sums && uniform_weights<G>(args))
    store_uniform_weight_sums<G>(layout, args, strip);
}

template <typename G>
__global__ void __launch_bounds__(kTeamThreads<G>, kTeamsAtOnce)
    team_key_kernel(const __grid_constant__ SweepArgs args, const __grid_constant__ Layout layout) {
  if (reduces_instead<G>(args)) return;
  Work<G> work(args, layout);
  const Strip& strip = work.strip;
  KeyStates<G> states;
  begin_states<G, false>(states, Others::kNone, layout, args, strip);
  auto tiles = work.template tiles_of_queries</*kBackwards=*/true, /*kOwn=*/2>(/*with_band=*/true);
  const Parts<G> parts_of_k(layout, 0), parts_of_v(layout, 1);
  Rows<G> to_k(args.dk, strip), to_v(args.dv, strip);
  to_k.skip(strip.end - 1), to_v.skip(strip.end - 1);
  KeyResults<G> results{{}, {}, WeightSums<G>(layout, strip)};
  results.weight_sums.clear();
  const auto finish = [&] {
    parts_of_k.store(strip, results.dk);
    parts_of_v.store(strip, results.dv);
  };
  const auto dead = [](int) {};
  const auto write = [&](int tile, uint32_t live) {
    parts_of_k.write(to_k, args, tile, live, -1);
    parts_of_v.write(to_v, args, tile, live, -1);
  };
  if (strip.warp < G::kMaps) {
    const KeySums<G> key_sums = work.key_sums();
    work.park(states);
    walk_together(
        work, tiles,
        [&](int tile) {
          clear(results.dk), clear(results.dv);
          far_key<G>(work.far, tiles, tiles.own_tile(0, tile), tiles.own_tile(1, tile), states,
                     key_sums, results);
          finish();
        },
        dead, write);
  } else {
    const Band band(args, args.right, args.left);
    walk_together(
        work, tiles,
        [&](int tile) {
          clear(results.dk), clear(results.dv);
          Blocks<G> value_sum;
          clear(value_sum);
          near_key<G>(results.dk, value_sum, tiles.own_tile(0, tile), tiles.own_tile(1, tile), band,
                      tiles, strip, tile, work.far.weights, 0, 1);
          results.add_values(work.far, G::kMaps, tiles.own_tile(1, tile), value_sum);
          finish();
        },
        dead, write);
  }
  results.weight_sums.store(layout, args);
}

}  // namespace fmmformer::cuda::strips
