// SPDX-License-Identifier: Apache-2.0
// A head's rows on their way to shared memory and results on their way back, and what a warp knows
// of where it is.
#pragma once

#include "attention/fmm/cuda/narrow/shape.cuh"

namespace fmmformer::cuda::narrow {

template <typename G>
struct Sequence {
  const SweepArgs& args;
  int pair, b, h, warp;
  int chunks;
  int chunk = 0;  // at hand
  int lane;
  uint32_t memory;  // the address of shared memory

  __device__ explicit Sequence(const SweepArgs& args) : args(args) {
    pair = blockIdx.x, b = pair / args.heads, h = pair % args.heads;
    // The same in every lane, as the compiler sees from the shuffle.
    warp = __shfl_sync(~0u, threadIdx.x / kWarpSize, 0);
    lane = lane_id();
    chunks = (args.length + kRows - 1) / kRows;
    memory = static_cast<uint32_t>(__cvta_generic_to_shared(shared_at<char>(0)));
  }
  /// What lanes add to addresses is made anew for every chunk: computed before the walk, it would
  /// be spilled.
  __device__ __forceinline__ void forget() { asm volatile("" : "+r"(lane)); }
  /// The warp's tile, counted from the sequence's first.
  __device__ __forceinline__ int tile() const { return chunk * kTiles + warp; }
  /// Where rows of the chunk `offset` from this one are in a ring.
  __device__ __forceinline__ uint32_t band_chunk(int which, int offset) const {
    return memory + G::kBand + (which * kSlots + ((chunk + offset) & 1)) * kChunkBytes;
  }
  /// A tile, counted from the chunk's first: from the chunk before to the one after.
  __device__ __forceinline__ uint32_t band_tile(int which, int tile) const {
    return band_chunk(which, tile >> 2) + (tile & 3) * kTileBytes;
  }
  __device__ __forceinline__ uint32_t own_tile(int which) const {
    return memory + G::kOwn + which * kChunkBytes + warp * kTileBytes;
  }
  __device__ __forceinline__ uint32_t features(int map) const {
    return memory + G::kFeatures + map * kChunkBytes;
  }
  __device__ __forceinline__ uint32_t state(int map) const {
    return memory + G::kStates + map * G::kStateBytes;
  }
  __device__ __forceinline__ const float* weights(int field) const {
    return shared_at<float>(G::kWeights) + field * kDim;
  }
  __device__ __forceinline__ float* sums(int map) const {
    return shared_at<float>(G::kSums) + map * kDim;
  }
  __device__ bool row_sums() const { return args.normaliser == Normaliser::kRowSum; }
  /// Of one of `fields` numbers that every row has, [pairs, fields, length].
  __device__ __forceinline__ int64_t row_index(int fields, int field) const {
    return (int64_t(pair) * fields + field) * args.length;
  }

  /// Bits of a tile's live tokens; none in the two before the sequence and after it.
  __device__ __forceinline__ uint32_t live(int tile) const {
    return shared_at<uint16_t>(G::kLive)[tile + 2];
  }
  __device__ void find_live() const {
    const int words = chunks * 2 + 2;
#pragma unroll 1
    for (int word = warp; word < words; word += kWarps) {
      const int token = (word - 1) * 32 + lane_id();
      const bool mine = token >= 0 && token < args.length &&
                        (!args.token_mask || args.token_mask[int64_t(b) * args.length + token]);
      const uint32_t bits = __ballot_sync(~0u, mine);
      if (lane_id() == 0) shared_at<uint32_t>(G::kLive)[word] = bits;
    }
  }
  __device__ void load_weights() const {
#pragma unroll 1
    for (int i = threadIdx.x; i < G::kFields * kDim; i += kThreads) {
      const int field = i / kDim, channel = i % kDim;
      const float x = field == G::kMaps ? weight_value(args.near_weight, 0, h, channel)
                                        : weight_value(args.far_weight, field, h, channel);
      shared_at<float>(G::kWeights)[i] = x;
      shared_at<Elem>(G::kOperands)[i] = Elem(x);
    }
    for (int i = threadIdx.x; i < G::kMaps * kDim; i += kThreads) shared_at<float>(G::kSums)[i] = 0;
    for (int i = threadIdx.x; i < G::kMaps * G::kStateBytes / 16; i += kThreads)
      shared_at<uint4>(G::kStates)[i] = make_uint4(0, 0, 0, 0);
  }
  /// The lane's first piece of sixteen bytes of a tile's rows: what all lanes share, and its own.
  __device__ __forceinline__ Elem* piece(const View& view, int tile) const {
    Elem* rows = static_cast<Elem*>(view.data) + (b * view.batch_stride + h * view.head_stride +
                                                  tile * kBlockDim * view.row_stride);
    return rows + (lane / 4 * static_cast<int>(view.row_stride) + lane % 4 * 8);
  }
  /// Begins to copy a tile. Dead rows become zeros, whatever memory holds there.
  __device__ __forceinline__ void copy(uint32_t to, const View& view, int tile,
                                       uint32_t live) const {
    const Elem* from = piece(view, tile);
    const uint32_t bits = live >> lane / 4;
    const uint32_t at = to + place(lane / 4, lane % 4);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(at + i * 8 * kRowBytes),
                   "l"(from + i * 8 * view.row_stride), "r"((bits >> i * 8 & 1) * 16)
                   : "memory");
    }
  }
  /// This warp's rows of a chunk `offset` from this one: of the ring's tensors; of its own.
  __device__ __forceinline__ void copy_band(int offset, const View& first,
                                            const View& second) const {
    const uint32_t to = band_chunk(0, offset) + warp * kTileBytes;
    const int from = tile() + offset * kTiles;
    const uint32_t bits = live(from);
    copy(to, first, from, bits), copy(to + kSlots * kChunkBytes, second, from, bits);
    if (G::kOfKeys) copy_numbers(offset);
  }
  __device__ __forceinline__ void copy_own(int offset, const View& first,
                                           const View& second) const {
    const int from = tile() + offset * kTiles;
    const uint32_t bits = live(from);
    copy(own_tile(0), first, from, bits);
    if (G::kOwnTensors > 1) copy(own_tile(1), second, from, bits);
    if (G::kSweep == Sweep::kQueries) copy_numbers(offset);
  }
  /// Numbers of the sixteen rows of a tile, counted from the chunk's first: see Shape.
  __device__ __forceinline__ float* numbers(int which, int tile) const {
    const int at = G::kOfKeys ? ((chunk + (tile >> 2)) & 1) * kTiles + (tile & 3) : tile;
    return shared_at<float>(G::kRowNumbers + at * G::kNumberBytes) + which * kBlockDim;
  }
  /// A tile's record in memory, counted from the sequence's first.
  __device__ __forceinline__ float* record(int tile) const {
    return args.records + pair * record_floats(args.length, G::kMaps) +
           tile * tile_record_floats(G::kMaps);
  }
  /// Begins to copy the numbers of the warp's tile in the chunk `offset` from this one. Those that
  /// forward left may be anything where rows are not live.
  __device__ __forceinline__ void copy_numbers(int offset) const {
    const int from = tile() + offset * kTiles;
    if constexpr (G::kOfKeys) {
      float* to = numbers(0, warp + offset * kTiles) + lane * 4;
      const float* rows = record(from) + lane * 4;
#pragma unroll
      for (int i = 0; i < G::kNumberBytes / 16; i += kWarpSize) {
        if (lane + i < G::kNumberBytes / 16) copy_async(to + i * 4, rows + i * 4, true);
      }
    } else {
      const int half = lane / kBlockDim, row = lane % kBlockDim;
      const int64_t token = min(from * kBlockDim + row, args.length - 1);
      float* to = numbers(half, warp) + row;
      const float* norms = args.normalisers + row_index(G::kMaps, 0) + token;
      if (half ? row_sums() : args.has_near)
        copy_number_async(to, half ? norms : args.log_sum_exp + row_index(1, 0) + token);
      if (G::kMaps > 1 && row_sums() && half < G::kMaps - 1)
        copy_number_async(to + 2 * kBlockDim, norms + (1 + half) * int64_t(args.length));
    }
  }
  /// Writes sixteen rows of results by way of `stage`, a tile nobody else reads; zeros for dead
  /// ones.
  __device__ __forceinline__ void write(const View& view, const Rows& results,
                                        uint32_t stage) const {
    __syncwarp();
#pragma unroll
    for (int s = 0; s < kBlocks; ++s)
      store_matrix(stage + (by_row(lane) ^ s * 32), rounded(results[s]));
    __syncwarp();
    const uint32_t bits = live(tile());
    Elem* to = piece(view, tile());
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = lane / 4 + i * 8;
      uint4 piece;
      asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];\n"
                   : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w)
                   : "r"(stage + place(row, lane % 4))
                   : "memory");
      if (!(bits >> row & 1)) piece = make_uint4(0, 0, 0, 0);
      if (tile() * kBlockDim + row < args.length)
        *reinterpret_cast<uint4*>(to + i * 8 * view.row_stride) = piece;
    }
  }
};

/// phi in fp32, for rows that are divided before they are rounded. tanh(x) + 1 = 2 / (1 + exp(-2x))
/// keeps its digits where it is small: a row may have nothing else.
template <int kMap>
__device__ __forceinline__ void wide_phi(uint32_t x, uint32_t decay, float (&phi)[2]) {
  float at[2], e[2];
  Bf16::unpack(x, at[0], at[1]), Bf16::unpack(decay, e[0], e[1]);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if constexpr (kMap == 0) phi[i] = fmaxf(1.f + at[i], e[i]);
    if constexpr (kMap == 1) phi[i] = fmaxf(1.f - at[i], e[i]);
    if constexpr (kMap == 2) phi[i] = 2.f * reciprocal(1.f + Bf16::exp2(-2.f * kLog2E * at[i]));
  }
}
/// Parts of both rows' sums, a lane each, become 1 / sum; 0 for a sum of 0.
__device__ __forceinline__ void invert_sums(float (&sum)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] = quad_sum(sum[r]);
    sum[r] = sum[r] == 0.f ? 0.f : reciprocal(sum[r]);
  }
}

/// Sixteen rows: numbers and exp(-|x|), from which come the feature rows of all maps.
template <typename G>
struct Inputs {
  Fragments x, decay;

  __device__ __forceinline__ Inputs(uint32_t tile, int lane) {
    load_rows(x, tile, by_row(lane));
    each([&](int s, int j) { decay[s].r[j] = decay_of(x[s].r[j]); });
  }
  template <int kMap>
  __device__ __forceinline__ void features(MapIndex<kMap>, Fragments& f) const {
    if constexpr (!G::kUnit) {
      each([&](int s, int j) { f[s].r[j] = feature_pair<kMap>(x[s].r[j], decay[s].r[j]); });
    } else {
      float phi[kBlocks * 4][2], sum[2] = {0.f, 0.f};
      each([&](int s, int j) {
        float(&pair)[2] = phi[s * 4 + j];
        wide_phi<kMap>(x[s].r[j], decay[s].r[j], pair);
        sum[j % 2] += pair[0] + pair[1];
      });
      invert_sums(sum);
      each([&](int s, int j) {
        const float(&pair)[2] = phi[s * 4 + j];
        f[s].r[j] = Bf16::pack(pair[0] * sum[j % 2], pair[1] * sum[j % 2]);
      });
    }
  }
  /// sum += gradient with respect to a unit feature row, times the map's slope: with
  /// f = phi / (sum of phi), dphi = (df - <df, f>) / (sum of phi).
  template <int kMap>
  __device__ __forceinline__ void add_unit_gradient(MapIndex<kMap>, Rows& sum,
                                                    const Rows& gradient) const {
    float inverse[2] = {0.f, 0.f}, along[2] = {0.f, 0.f};
    each([&](int s, int j) {
      float phi[2];
      wide_phi<kMap>(x[s].r[j], decay[s].r[j], phi);
      const float* df = gradient[s][j / 2] + j % 2 * 2;
      inverse[j % 2] += phi[0] + phi[1], along[j % 2] += df[0] * phi[0] + df[1] * phi[1];
    });
    invert_sums(inverse);
#pragma unroll
    for (int r = 0; r < 2; ++r) along[r] = quad_sum(along[r]) * inverse[r];
    each([&](int s, int j) {
      float slope[2];
      wide_phi<kMap>(x[s].r[j], decay[s].r[j], slope);
      float* to = sum[s][j / 2] + j % 2 * 2;
      const float* df = gradient[s][j / 2] + j % 2 * 2;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (kMap == 0) slope[i] = fminf(slope[i], 1.f);
        if (kMap == 1) slope[i] = -fminf(slope[i], 1.f);
        if (kMap == 2) slope[i] *= 2.f - slope[i];  // 1 - t^2 = (1 + t) (2 - (1 + t))
        to[i] += (df[i] - along[j % 2]) * (slope[i] * inverse[j % 2]);
      }
    });
  }

 private:
  /// body(s, j) for register j of block s: its numbers belong to row g + j % 2 * 8.
  template <typename Body>
  static __device__ __forceinline__ void each(const Body& body) {
#pragma unroll
    for (int i = 0; i < kBlocks * 4; ++i) body(i / 4, i % 4);
  }
};
/// body(map) for every map, by one piece of code: the maps' work is not mixed, which would need
/// more registers than there are.
template <typename G, typename Body>
__device__ __forceinline__ void each_map_in_turn(const Body& body) {
#pragma unroll 1
  for (int map = 0; map < G::kMaps; ++map) body(map);
}
/// body(the map as a constant).
template <typename G, typename Body>
__device__ __forceinline__ void with_map(int map, const Body& body) {
  if (map == 0) body(MapIndex<0>());
  if constexpr (G::kMaps > 1) {
    if (map == 1) body(MapIndex<1>());
  }
  if constexpr (G::kMaps > 2) {
    if (map == 2) body(MapIndex<2>());
  }
}

/// Feature rows of a tile at one map.
template <typename G, typename Map>
__device__ __forceinline__ void make_features(Map map, Fragments& f, uint32_t tile, int lane) {
  Inputs<G>(tile, lane).features(map, f);
}
/// sum += gradient with respect to a map's rows f, times the map's slope. Rows of elu and elu_flip
/// tell it themselves, min(f, 1); for tanh1, and for unit features, the tile is loaded again.
template <typename G, int kMap>
__device__ __forceinline__ void add_input_gradient(MapIndex<kMap> map, const Fragments& f,
                                                   uint32_t tile, int lane, Rows& sum,
                                                   const Rows& gradient) {
  if constexpr (G::kUnit) {
    Inputs<G>(tile, lane).add_unit_gradient(map, sum, gradient);
    return;
  }
#pragma unroll
  for (int s = 0; s < kBlocks; ++s) {
    Fragment x = f[s];
    if (kMap == 2) x = load_matrix(tile + (by_row(lane) ^ s * 32));
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float low, high;
      if constexpr (kMap == 2) {
        slope_pair<kMap>(x.r[j], 0, low, high);
      } else {
        Bf16::unpack(as_bits(__hmin2(as_pair(x.r[j]), both(1.f))), low, high);
        if (kMap == 1) low = -low, high = -high;
      }
      float* to = sum[s][j / 2] + j % 2 * 2;
      const float* df = gradient[s][j / 2] + j % 2 * 2;
      to[0] += df[0] * low, to[1] += df[1] * high;
    }
  }
}

/// A chunk's block of products, of the warp's rows with 64 tokens, as operands: what a row must not
/// see is zero. Those are tokens after it or, kBefore, before it.
template <bool kBefore>
__device__ __forceinline__ void cut(Fragment (&f)[kTiles], int warp) {
  Fragment own = {{~0u, ~0u, ~0u, ~0u}};
  cut_at_diagonal<kBefore>(own);
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const bool all = kBefore ? t > warp : t < warp, some = t == warp;
#pragma unroll
    for (int j = 0; j < 4; ++j) f[t].r[j] &= all ? ~0u : some ? own.r[j] : 0u;
  }
}

/// Rows of v or grad_out times a field's weights.
template <typename G>
__device__ __forceinline__ void weigh(const Sequence<G>&, Fragments& f, int field) {
  const Elem* weights = shared_at<Elem>(G::kOperands) + field * kDim + lane_id() % 4 * 2;
#pragma unroll
  for (int n = 0; n < kBlocks * 2; ++n) {
    const Pair w = *reinterpret_cast<const Pair*>(weights + n * 8);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint32_t& x = f[n / 2].r[n % 2 * 2 + r];
      x = as_bits(__hmul2(as_pair(x), w));
    }
  }
}
/// sum += rows * weight * factor of rows g and g + 8.
template <typename G>
__device__ __forceinline__ void add_field(const Sequence<G>& at, Rows& sum, const Rows& rows,
                                          const float (&factor)[2], int field) {
  const float* weights = at.weights(field) + lane_id() % 4 * 2;
#pragma unroll
  for (int n = 0; n < kBlocks * 2; ++n) {
    const float2 w = *reinterpret_cast<const float2*>(weights + n * 8);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sum[n / 2][n % 2][i] += (i % 2 ? w.y : w.x) * (factor[i / 2] * rows[n / 2][n % 2][i]);
  }
}

}  // namespace fmmformer::cuda::narrow
