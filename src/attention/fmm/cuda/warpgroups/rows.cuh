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
/// Of them what a band sees: up to three tiles, groups; see chunks::Band.
using NearBlocks = Block[chunks::kMostGroups];
using NearFragments = Fragment[chunks::kMostGroups];

template <typename G, Sweep kSweep>
struct Rows {
  using M = Memory<G, kSweep>;
  static constexpr bool kAfter = M::kBackwards;  // the halo is after the chunk
  using Place = warpgroups::Place<G, kSweep>;
  using Band = chunks::Band<G, kAfter ? chunks::Sweep::kKeys : chunks::Sweep::kForward>;
  const SweepArgs& args;
  const Events<M>& events;
  int tile = threadIdx.x / kWarpSize % kGroupWarps;  // of the chunk: this warp's rows
  LanePlace lane{tile * kBlockDim};
  uint32_t far_bits = 0;  // which elements of the chunk's tiles are not beyond the diagonal
  int step = 0;

  __device__ Rows(const SweepArgs& args, const Events<M>& events) : args(args), events(events) {
    for (int i = 0; i < 8 * kTiles; ++i) {
      const int column = i / 8 * kBlockDim + column_of(i / 4 % 2, i);
      const int row = tile * kBlockDim + row_of(i % 4);
      if (kAfter ? column >= row : column <= row) far_bits |= 1u << i;
    }
    asm volatile("" : "+r"(far_bits));  // not to be computed again in every step
  }
  /// body() for every chunk.
  template <typename Body>
  __device__ __forceinline__ void walk(const Body& body) {
#pragma unroll 1
    for (; step < Place::numbers().count; ++step) {
      events.await(kTilesFull, step);
      forget();
      body();
      events.say(kTilesEmpty);
    }
  }

  /// Keeps the compiler from computing addresses before the walk: those of a step are cheaper than
  /// the registers that would hold them.
  __device__ __forceinline__ void forget() { asm volatile("" : "+r"(lane.row), "+r"(lane.piece)); }

  __device__ __forceinline__ int slot() const { return step & 1; }
  __device__ __forceinline__ int band(int which) const { return M::band(which, slot()); }
  /// Its first row of the chunk beside.
  __device__ __forceinline__ int halo(int which) const {
    return M::band(which, slot() ^ 1) + (kAfter ? 0 : kHaloBytes);
  }
  __device__ __forceinline__ int own(int which) const { return M::own(which, slot()); }
  __device__ __forceinline__ int first_token() const { return Place::chunk(step) * kChunk; }
  /// Bits of the live tokens of a tile: -2 to 5.
  __device__ __forceinline__ uint32_t live_bits(int index) const {
    const bool beside = index < 0 || index >= kTiles;
    const uint64_t bits = Place::live(beside ? slot() ^ 1 : slot());
    return static_cast<uint32_t>(bits >> (index & (kTiles - 1)) * kBlockDim) & 0xffffu;
  }
  __device__ __forceinline__ bool is_live(int r) const {  // row g or g + 8
    return live_bits(tile) >> row_of(2 * r) & 1;
  }
  /// A field's; the near field's is the last.
  __device__ __forceinline__ float weight(int field) const {
    return Place::numbers().weights[field];
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
  __device__ __forceinline__ int64_t row_index(const SweepArgs& args, int fields, int field) const {
    return Place::row_index(args, fields, field);
  }
  /// One of a query's numbers, of rows g and g + 8.
  __device__ __forceinline__ void row_numbers(float (&numbers)[2], int which) const {
    const float* mine = M::numbers(which, slot()) + tile * kBlockDim;
#pragma unroll
    for (int r = 0; r < 2; ++r) numbers[r] = mine[row_of(2 * r)];
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
  /// The own rows' features of sixteen channels, from what keepers left in shared memory.
  template <int kMap>
  __device__ __forceinline__ Fragment features(int s) const {
    if constexpr (M::kOwnFeatures) return load_block(M::kMade + kMap * G::kTile, s);
    Fragment f = load_block(own(0), s);
    const Fragment e = M::kQueries ? load_block(M::kMade, s) : f;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      f.r[i] = feature_pair<kMap>(f.r[i], M::kQueries ? e.r[i] : decay_of(f.r[i]));
    return f;
  }
  /// Makes them, where keepers do not: each warp those of its rows.
  __device__ __forceinline__ void make_own_features() const {
    named_barrier(2, kGroupThreads);  // nobody needs those of the chunk before
#pragma unroll 2
    for (int s = 0; s < G::kBlocks; ++s) {
      const Fragment x = load_block(own(0), s);
      Fragment decay, f;
#pragma unroll
      for (int i = 0; i < 4; ++i) decay.r[i] = decay_of(x.r[i]);
      each_map<G>([&](auto map) {
        constexpr int kMap = decltype(map)::value;
#pragma unroll
        for (int i = 0; i < 4; ++i) f.r[i] = feature_pair<kMap>(x.r[i], decay.r[i]);
        store_fragment(block_place(M::kMade + kMap * G::kTile, s), f);
      });
    }
    show_to_warpgroup();
    named_barrier(2, kGroupThreads);
  }
  /// Begins s += (own rows' features) (features in shared memory)^T, or, without `add`, s = ...
  __device__ __forceinline__ void begin_far_scores(Block (&s)[kTiles], int map, bool add) const {
    begin_warpgroup_products();
#pragma unroll
    for (int b = 0; b < G::kBlocks; ++b)
      product<Turned::kNo, Turned::kNo>(s, rows_operand(M::kMade + map * G::kTile, b),
                                        rows_operand(M::kFeatures + map * G::kTile, b),
                                        add || b > 0);
    commit_products();
  }
  /// Begins sum += (own rows' features) (state of a map)^T, or, without `add`, sum = ...
  __device__ __forceinline__ void begin_state_sum(Block (&sum)[G::kBlocks], int map,
                                                  bool add) const {
    begin_warpgroup_products();
#pragma unroll
    for (int b = 0; b < G::kBlocks; ++b)
      product<Turned::kNo, Turned::kNo>(sum, rows_operand(M::kMade + map * G::kTile, b),
                                        state_rows_operand<G>(M::kState + map * G::kStateOfMap, b),
                                        add || b > 0);
    commit_products();
  }

  /// Begins x = (own rows of tensor `which`) (rows of the band's tensor `which`)^T.
  __device__ __forceinline__ void begin_scores(Scores& x, int which) const {
    begin_warpgroup_products();
#pragma unroll
    for (int s = 0; s < G::kBlocks; ++s) {
      const Operand rows = rows_operand(own(which), s);
      product<Turned::kNo, Turned::kNo>(x.main, rows, rows_operand(band(which), s), s > 0);
      product<Turned::kNo, Turned::kNo>(x.halo, rows, rows_operand(halo(which), s), s > 0);
    }
    commit_products();
  }
  // What follows has no branches by tile: jumps cost more than the instructions that they save.

  /// The tiles that the warp's rows see in the near field.
  __device__ __forceinline__ void gather(NearBlocks& near, const Scores& x) const {
    const bool odd = tile & 1, upper = tile & 2;
#pragma unroll
    for (int i = 0; i < 8 * chunks::kMostGroups; ++i) {
      const auto of_warp = [&](int warp) {
        const int index = kAfter ? warp + i / 8 : warp - i / 8;
        return (index >= 0 && index < kTiles ? x.main[index & 3]
                                             : x.halo[index & 1])[i / 4 % 2][i % 4];
      };
      const float low = odd ? of_warp(1) : of_warp(0), high = odd ? of_warp(3) : of_warp(2);
      near[i / 8][i / 4 % 2][i % 4] = upper ? high : low;
    }
  }
  /// Which of their elements are in the band, and live: eight bits a group.
  __device__ __forceinline__ uint32_t near_bits(const Band& band) const {
    if (band.groups == 0) return 0;
    if ((Place::live(0) & Place::live(1)) == ~uint64_t(0)) return band.bits;
    uint32_t bits = 0;
#pragma unroll
    for (int k = 0; k < chunks::kMostGroups; ++k)
      bits |= band.inside(k, live_bits(kAfter ? tile + k : tile - k)) << 8 * k;
    return bits;
  }
  /// Which of them dropout keeps, if it drops any. A good thing to do while products are under way.
  __device__ __forceinline__ uint32_t kept_bits(const Band& band) const {
    uint32_t bits = 0;
    if constexpr (G::kDrops) {
      const int pair = Place::numbers().pair, own = first_token() + tile * kBlockDim;
#pragma unroll 1
      for (int k = 0; k < chunks::kMostGroups; ++k) {
        const int others = own + (kAfter ? k : -k) * kBlockDim;
        bits |= (kAfter ? kept_by_key(args, band.seed, pair, own, others)
                        : kept_by_query(args, band.seed, pair, own, others))
                << 8 * k;
      }
    }
    return bits;
  }
  /// Elements that are kept, times 1 / (1 - p); zeros for the others.
  __device__ __forceinline__ void drop(NearBlocks& near, uint32_t kept) const {
    if constexpr (G::kDrops) {
#pragma unroll
      for (int i = 0; i < 8 * chunks::kMostGroups; ++i)
        near[i / 8][i / 4 % 2][i % 4] *= kept >> i & 1 ? args.keep_factor : 0.f;
    }
  }
  /// Back to the places among the tiles; zeros elsewhere. Index: -2 to 5.
  __device__ __forceinline__ Fragment near_fragment(const NearFragments& near, int index) const {
    Fragment f = {{0, 0, 0, 0}};
#pragma unroll
    for (int k = 0; k < chunks::kMostGroups; ++k) {
      const int warp = kAfter ? index - k : index + k;
      if (warp < 0 || warp >= kTiles) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) f.r[i] = tile == warp ? near[k].r[i] : f.r[i];
    }
    return f;
  }
  /// Begins sum += near (rows of the band's tensor `which`), or, without `add`, sum = ...; the
  /// operands must stay until it is done.
  __device__ __forceinline__ void begin_near_sum(Block (&sum)[G::kBlocks],
                                                 Fragment (&operands)[kTiles + chunks::kHalo],
                                                 NearFragments& near, int which, bool add) const {
    constexpr int kFirst = kAfter ? 0 : -chunks::kHalo;
    arrived(near);  // operands are twice as many registers: not to be made before
#pragma unroll
    for (int i = 0; i < kTiles + chunks::kHalo; ++i) operands[i] = near_fragment(near, kFirst + i);
    begin_warpgroup_products();
#pragma unroll
    for (int i = 0; i < kTiles + chunks::kHalo; ++i) {
      const int index = kFirst + i;
      const bool main = index >= 0 && index < kTiles;
      product<Turned::kYes>(
          sum, operands[i],
          columns_operand(main ? band(which) : halo(which), main ? index : index & 1),
          add || i > 0);
    }
    commit_products();
  }
  /// Begins sum += a (the chunk's rows of the band's tensor `which`).
  __device__ __forceinline__ void begin_far_sum(Block (&sum)[G::kBlocks],
                                                const Fragment (&a)[kTiles], int which) const {
    begin_warpgroup_products();
#pragma unroll
    for (int s = 0; s < kTiles; ++s)
      product<Turned::kYes>(sum, a[s], columns_operand(band(which), s), true);
    commit_products();
  }
  /// Clears what is beyond the diagonal.
  __device__ __forceinline__ void cut(Block (&s)[kTiles]) const {
#pragma unroll
    for (int i = 0; i < 8 * kTiles; ++i) {
      float& element = s[i / 8][i / 4 % 2][i % 4];
      element = far_bits >> i & 1 ? element : 0.f;
    }
  }

  /// A result waits where the first map's state was, which the rows have no more use for: registers
  /// do not hold two results beside what makes them. Each lane has its own place.
  __device__ __forceinline__ float4* aside(int i) const {
    return shared_at<float4>(M::kState) + i * kGroupThreads + threadIdx.x % kGroupThreads;
  }
  __device__ __forceinline__ void put_aside(const Block (&c)[G::kBlocks]) const {
    // A warp has waited for its own products; those of the others may still read the state.
    named_barrier(2, kGroupThreads);
#pragma unroll
    for (int i = 0; i < 2 * G::kBlocks; ++i) {
      const float(&from)[4] = c[i / 2][i % 2];
      *aside(i) = make_float4(from[0], from[1], from[2], from[3]);
    }
  }
  __device__ __forceinline__ void add_aside(Block (&c)[G::kBlocks]) const {
#pragma unroll
    for (int i = 0; i < 2 * G::kBlocks; ++i) {
      const float4 more = *aside(i);
      float(&to)[4] = c[i / 2][i % 2];
      to[0] += more.x, to[1] += more.y, to[2] += more.z, to[3] += more.w;
    }
  }

  /// Writes the rows, the channels that heads have, by way of their own tile `stage`, which nobody
  /// needs any more. Zeros for dead ones.
  __device__ __forceinline__ void write(const View& view, const Block (&rows)[G::kBlocks],
                                        int stage) const {
    __syncwarp();
#pragma unroll
    for (int b = 0; b < G::kBlocks; ++b) store_fragment(block_place(stage, b), rounded(rows[b]));
    __syncwarp();
    constexpr int kPieces = G::kDim / kPiece, kAtOnce = kWarpSize / kPieces;
    const int row = lane_id() / kPieces, piece = lane_id() % kPieces;
    const int first = first_token() + tile * kBlockDim + row;
    const int end = chunks::has_piece<G>(args.head_dim, piece) ? args.length : 0;
    const uint32_t alive = live_bits(tile);
    Elem* to = Place::rows_of(view) + first * view.row_stride + piece * kPiece;
    const int64_t further = kAtOnce * view.row_stride;
    const auto at = [&](int i) {
      return *shared_at<uint4>(stage + piece / 8 * kPanel +
                               swizzled(tile * kBlockDim + row + i, piece % 8));
    };
    if (alive == 0xffffu) {
#pragma unroll
      for (int i = 0; i < kBlockDim; i += kAtOnce, to += further)
        if (G::kFull || end > 0) *reinterpret_cast<uint4*>(to) = at(i);
    } else {
#pragma unroll 1
      for (int i = 0; i < kBlockDim; i += kAtOnce, to += further) {
        const uint4 all = alive >> (row + i) & 1 ? at(i) : make_uint4(0, 0, 0, 0);
        if (first + i < end) *reinterpret_cast<uint4*>(to) = all;
      }
    }
    __syncwarp();
  }
};

/// The gradient with respect to f becomes that with respect to f's argument: times factor, for rows
/// g and g + 8, and f's slope, which is min(f, 1) or its negative.
template <int kMap>
__device__ __forceinline__ void to_input_gradient(Block& gradient, const Fragment& f,
                                                  const float (&factor)[2]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float low, high;
    Bf16::unpack(as_bits(__hmin2_nan(as_pair(f.r[j]), both(1.f))), low, high);
    const float here = kMap == 1 ? -factor[j % 2] : factor[j % 2];
    float* at = gradient[j / 2] + j % 2 * 2;
    at[0] *= here * low, at[1] *= here * high;
  }
}
__device__ __forceinline__ void round_tiles(Fragment (&a)[kTiles], const Block (&s)[kTiles]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) a[t] = rounded(s[t]);
}

}  // namespace fmmformer::cuda::warpgroups
