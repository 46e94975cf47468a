// SPDX-License-Identifier: Apache-2.0
// The rows' warpgroup: what its sweeps do alike. Warp w has the rows 16 w to 16 w + 15.
#pragma once

#include "attention/fmm/cuda/warpgroups/shape.cuh"

namespace fmmformer::cuda::warpgroups {

/// Scores or gradients of the warp's rows, by tiles of sixteen columns: those of the chunk, and the
/// two that the band sees beside it.
struct Scores {
  Block main[kTiles], halo[chunks::kHalo];

  __device__ __forceinline__ void wait() { arrived(main), arrived(halo); }
};
/// Rounded, as left operands.
struct ScoreFragments {
  Fragment main[kTiles], halo[chunks::kHalo];
};

template <typename G, Sweep kSweep>
struct Rows {
  using M = Memory<G, kSweep>;
  static constexpr bool kAfter = kSweep == Sweep::kKeys;  // the halo is after the chunk
  const SweepArgs& args;
  const Place<G, kSweep>& place;
  const Events<M>& events;
  const int tile = threadIdx.x / kWarpSize % kGroupWarps;  // of the chunk: this warp's rows
  const LanePlace lane{tile * kBlockDim};
  int step = 0;
  uint64_t live, beside, coming;  // tokens of the chunk, the one before it, the next

  __device__ Rows(const SweepArgs& args, const Place<G, kSweep>& place, const Events<M>& events)
      : args(args), place(place), events(events) {
    beside = place.live_tokens(args, place.chunk(-1)), live = place.live_tokens(args, place.first);
  }
  /// body() for every chunk.
  template <typename Body>
  __device__ __forceinline__ void walk(const Body& body) {
#pragma unroll 1
    for (; step < place.count; ++step) {
      coming = place.live_tokens(args, place.chunk(step + 1));
      events.await(kTilesFull, step);
      body();
      events.say(kTilesEmpty);
      beside = live, live = coming;
    }
  }

  __device__ __forceinline__ int slot() const { return step & 1; }
  __device__ __forceinline__ int band(int which) const { return M::band(which, slot()); }
  /// Its first row of the chunk beside.
  __device__ __forceinline__ int halo(int which) const {
    return M::band(which, slot() ^ 1) + (kAfter ? 0 : kHaloBytes);
  }
  __device__ __forceinline__ int own(int which) const { return M::own(which, slot()); }
  __device__ __forceinline__ int first_token() const { return place.chunk(step) * kChunk; }
  /// Bits of the live tokens of a tile: -2 to 5.
  __device__ __forceinline__ uint32_t live_bits(int index) const {
    const uint64_t bits = index < 0 || index >= kTiles ? beside : live;
    return static_cast<uint32_t>(bits >> (index & (kTiles - 1)) * kBlockDim) & 0xffffu;
  }
  __device__ __forceinline__ bool is_live(int r) const {  // row g or g + 8
    return live_bits(tile) >> row_of(2 * r) & 1;
  }
  /// One of a query's numbers, for this lane's columns of a tile.
  __device__ __forceinline__ void column_numbers(float2 (&numbers)[2], int which, int index) const {
    const float* of_slot = M::numbers(which, index < kTiles ? slot() : slot() ^ 1);
    chunks::column_numbers(numbers, of_slot + index % kTiles * kBlockDim);
  }
  /// body(r, token) for rows g and g + 8, in one lane each.
  template <typename Body>
  __device__ __forceinline__ void each_row_once(const Body& body) const {
    if (lane_id() % 4 != 0) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int token = first_token() + tile * kBlockDim + row_of(2 * r);
      if (token < args.length) body(r, token);
    }
  }
  /// Numbers of rows g and g + 8, from one of [pairs, fields, length].
  __device__ __forceinline__ void load_numbers(float (&numbers)[2], const float* all, int fields,
                                               int field) const {
    const float* mine = all + place.row_index(args, fields, field);
#pragma unroll
    for (int r = 0; r < 2; ++r)
      numbers[r] = mine[min(first_token() + tile * kBlockDim + row_of(2 * r), args.length - 1)];
  }

  /// Sixteen channels of the warp's rows in a tile.
  __device__ __forceinline__ int block_place(int tile_place, int s) const {
    return tile_place + s / 4 * kPanel + lane.of(s % 4);
  }
  __device__ __forceinline__ Fragment load_block(int tile_place, int s) const {
    Fragment f;
    Bf16::ldmatrix4(f.r, shared_at<Elem>(block_place(tile_place, s)));
    return f;
  }
  /// The own rows' features in all maps.
  __device__ __forceinline__ void make_features(Fragment (&f)[G::kMaps][G::kBlocks]) const {
#pragma unroll
    for (int s = 0; s < G::kBlocks; ++s) {
      const Fragment x = load_block(own(0), s);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t decay = decay_of(x.r[i]);
        each_map<G>([&](auto map) {
          constexpr int kMap = decltype(map)::value;
          f[kMap][s].r[i] = feature_pair<kMap>(x.r[i], decay);
        });
      }
    }
  }
  template <int kMap>
  __device__ __forceinline__ Fragment features(int s) const {
    Fragment f = load_block(own(0), s);
#pragma unroll
    for (int i = 0; i < 4; ++i) f.r[i] = feature_pair<kMap>(f.r[i], decay_of(f.r[i]));
    return f;
  }

  /// Begins x = (own rows of tensor `which`) (rows of the band's tensor `which`)^T.
  __device__ __forceinline__ void begin_scores(Scores& x, int which) const {
    begin_products();
#pragma unroll
    for (int s = 0; s < G::kBlocks; ++s) {
      const Operand rows = rows_operand(own(which), s);
      product<Turned::kNo, Turned::kNo>(x.main, rows, rows_operand(band(which), s), s > 0);
      product<Turned::kNo, Turned::kNo>(x.halo, rows, rows_operand(halo(which), s), s > 0);
    }
    commit_products();
  }
  /// Begins sum += a (rows of the band's tensor `which`), or, without `add`, sum = ...
  __device__ __forceinline__ void begin_sum(Block (&sum)[G::kBlocks], const ScoreFragments& a,
                                            int which, bool add) const {
#pragma unroll
    for (int s = 0; s < chunks::kHalo; ++s)
      product<Turned::kYes>(sum, a.halo[s], columns_operand(halo(which), s), add || s > 0);
#pragma unroll
    for (int s = 0; s < kTiles; ++s)
      product<Turned::kYes>(sum, a.main[s], columns_operand(band(which), s), true);
  }

  /// For every tile: body(block, index, group of the band) where the warp's rows see it, else
  /// otherwise(block).
  template <typename Body, typename Otherwise>
  __device__ __forceinline__ void each_near_tile(Scores& x, int groups, const Body& body,
                                                 const Otherwise& otherwise) const {
    const auto of_one = [&](Block& c, Block&, int index, int group) { body(c, index, group); };
    each_near_tile(x, x, groups, of_one, otherwise);
  }
  /// The same with a second matrix of the same tiles.
  template <typename Body, typename Otherwise>
  __device__ __forceinline__ void each_near_tile(Scores& x, Scores& y, int groups,
                                                 const Body& body,
                                                 const Otherwise& otherwise) const {
#pragma unroll
    for (int i = 0; i < kTiles + chunks::kHalo; ++i) {
      const int index = kAfter ? i : i - chunks::kHalo;
      const bool main = index >= 0 && index < kTiles;
      Block& block = main ? x.main[index & 3] : x.halo[index & 1];
      Block& other = main ? y.main[index & 3] : y.halo[index & 1];
      const int group = kAfter ? index - tile : tile - index;
      if (group >= 0 && group < groups) {
        body(block, other, index, group);
      } else {
        otherwise(block);
      }
    }
  }
  /// Whether the chunk's tile `index` has anything for the warp's rows in the far field.
  __device__ __forceinline__ bool is_far_tile(int index) const {
    return kAfter ? index >= tile : index <= tile;
  }

  /// Writes the rows by way of their own tile `stage`, which nobody needs any more. Zeros for dead
  /// ones.
  __device__ __forceinline__ void write(const View& view, const Block (&rows)[G::kBlocks],
                                        int stage) const {
    __syncwarp();
#pragma unroll
    for (int b = 0; b < G::kBlocks; ++b) store_fragment(block_place(stage, b), rounded(rows[b]));
    __syncwarp();
    constexpr int kPieces = G::kDim / kPiece, kAtOnce = kWarpSize / kPieces;
    const int row = lane_id() / kPieces, piece = lane_id() % kPieces;
    const int first = first_token() + tile * kBlockDim + row;
    const uint32_t alive = live_bits(tile);
    Elem* to = place.rows_of(view) + first * view.row_stride + piece * kPiece;
#pragma unroll
    for (int i = 0; i < kBlockDim; i += kAtOnce) {
      const int from = stage + piece / 8 * kPanel + swizzled(tile * kBlockDim + row + i, piece % 8);
      uint4 all = *shared_at<uint4>(from);
      if (!(alive >> (row + i) & 1)) all = make_uint4(0, 0, 0, 0);
      if (first + i < args.length) *reinterpret_cast<uint4*>(to + i * view.row_stride) = all;
    }
    __syncwarp();
  }
};

/// sum += factor * gradient with respect to f, times f's slope, from f: min(f, 1), or its negative.
/// `factor`: for rows g and g + 8.
template <int kMap>
__device__ __forceinline__ void add_input_gradient(Block& sum, const Block& gradient,
                                                   const Fragment& f, const float (&factor)[2]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float low, high;
    Bf16::unpack(as_bits(__hmin2_nan(as_pair(f.r[j]), both(1.f))), low, high);
    const float here = kMap == 1 ? -factor[j % 2] : factor[j % 2];
    float* to = sum[j / 2] + j % 2 * 2;
    const float* from = gradient[j / 2] + j % 2 * 2;
    to[0] += here * from[0] * low, to[1] += here * from[1] * high;
  }
}

}  // namespace fmmformer::cuda::warpgroups
