// SPDX-License-Identifier: Apache-2.0
// A head's rows on their way to shared memory, where they become pairs, and results on their way
// back; and what a warp knows of where it is.
#pragma once

#include "attention/fmm/cuda/barrier.cuh"
#include "attention/fmm/cuda/narrow_fp32/shape.cuh"

namespace fmmformer::cuda::narrow_fp32 {

template <typename G>
struct Sequence {
  const SweepArgs& args;
  int pair, b, h, warp;  // of four
  int chunks;
  int chunk = 0;  // at hand
  int lane;
  uint32_t memory;  // the address of shared memory

  __device__ explicit Sequence(const SweepArgs& args) : args(args) {
    pair = blockIdx.x, b = pair / args.heads, h = pair % args.heads;
    // The same in every lane, as the compiler sees from the shuffle.
    warp = __shfl_sync(~0u, threadIdx.x / kWarpSize % kWarps, 0);
    lane = lane_id();
    chunks = (args.length + kRows - 1) / kRows;
    memory = static_cast<uint32_t>(__cvta_generic_to_shared(shared_at<char>(0)));
  }
  /// What lanes add to addresses is made anew for every chunk: computed before the walk, it would
  /// be spilled.
  __device__ __forceinline__ void forget() { asm volatile("" : "+r"(lane)); }
  /// A barrier of those who walk, or of those who feed; and two at which one side does not wait.
  /// Walkers: rows before the chunk are no longer needed. Feeders: features and state are there.
  static __device__ __forceinline__ void meet_walkers() { meet<1, kTeamThreads>(); }
  static __device__ __forceinline__ void meet_feeders() { meet<4, kTeamThreads>(); }
  static __device__ __forceinline__ void leave_halo() { arrive<2>(); }
  static __device__ __forceinline__ void await_halo() { meet<2, kThreads>(); }
  static __device__ __forceinline__ void leave_features() { arrive<3>(); }
  static __device__ __forceinline__ void await_features() { meet<3, kThreads>(); }
  /// The warp's tile, counted from the sequence's first.
  __device__ __forceinline__ int tile() const { return chunk * kTiles + warp; }
  /// Where rows of the chunk `offset` from this one are in a ring.
  __device__ __forceinline__ int slot(int offset) const { return (chunk + offset) & 1; }
  __device__ __forceinline__ uint32_t band_chunk(int which, int offset) const {
    return memory + G::kBand + (which * kSlots + slot(offset)) * kChunkBytes;
  }
  /// A tile, counted from the chunk's first: from the chunk before to the one after.
  __device__ __forceinline__ uint32_t band_tile(int which, int tile) const {
    return band_chunk(which, tile >> 2) + (tile & 3) * kTileBytes;
  }
  __device__ __forceinline__ Size& band_size(int which, int tile) const {
    return shared_at<Size>(G::kSizes)[(which * kSlots + slot(tile >> 2)) * kTiles + (tile & 3)];
  }
  __device__ __forceinline__ uint32_t own_tile(int which, int offset = 0) const {
    return memory + G::kOwn + (which * kSlots + slot(offset)) * kChunkBytes + warp * kTileBytes;
  }
  __device__ __forceinline__ Size& own_size(int which, int offset = 0) const {
    return shared_at<Size>(G::kSizes)[((2 + which) * kSlots + slot(offset)) * kTiles + warp];
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
  __device__ __forceinline__ int weight_shift(int field) const {
    return shared_at<int>(G::kWeightShifts)[field];
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
    for (int word = threadIdx.x / kWarpSize; word < words; word += kThreads / kWarpSize) {
      const int token = (word - 1) * 32 + lane_id();
      const bool mine = token >= 0 && token < args.length &&
                        (!args.token_mask || args.token_mask[int64_t(b) * args.length + token]);
      const uint32_t bits = __ballot_sync(~0u, mine);
      if (lane_id() == 0) shared_at<uint32_t>(G::kLive)[word] = bits;
    }
  }
  /// By all walkers, a warp a field: weights, and the same times a power of two that leaves them at
  /// most 1.
  __device__ void load_weights() const {
    static_assert(G::kFields <= kWarps && kDim == kWarpSize);
    if (warp < G::kFields) {
      const float x = warp == G::kMaps ? weight_value(args.near_weight, 0, h, lane_id())
                                       : weight_value(args.far_weight, warp, h, lane_id());
      const int shift = shift_for(warp_max(fabsf(x))) - kTop;
      const int at = warp * kDim + lane_id();
      shared_at<float>(G::kWeights)[at] = x;
      shared_at<float>(G::kScaledWeights)[at] = x * power_of_2(shift);
      shared_at<int>(G::kWeightShifts)[warp] = shift;
    }
    if (threadIdx.x < 8) shared_at<float>(G::kStateMaxima)[threadIdx.x] = 0.f;
  }

  /// The lane's first number of a tile in memory, where lanes differ by rows and channels.
  __device__ __forceinline__ const float* numbers_of(const View& view, int tile, int row,
                                                     int channel) const {
    const float* rows =
        static_cast<const float*>(view.data) +
        (b * view.batch_stride + h * view.head_stride + tile * kBlockDim * view.row_stride);
    return rows + (row * static_cast<int>(view.row_stride) + channel);
  }
  static __device__ __forceinline__ void copy_piece(uint32_t to, const float* from, bool live) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from),
                 "r"(live ? 16 : 0)
                 : "memory");
  }
  /// Begins to copy a tile of own rows. Dead rows become zeros, whatever memory holds there.
  __device__ __forceinline__ void copy_numbers_of(uint32_t to, const View& view, int tile,
                                                  uint32_t live) const {
    const int row = lane / 8;
    const float* from = numbers_of(view, tile, row, lane % 8 * 4);
    const uint32_t first = to + row * kNumberRow + ((lane % 8 ^ row * 2) << 4);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      copy_piece(first + i * 4 * kNumberRow, from + i * 4 * view.row_stride,
                 live >> (row + i * 4) & 1);
  }
  /// The size of such a tile that has come.
  __device__ __forceinline__ void measure(uint32_t tile, Size& size) const {
    float x[4], most = 0.f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      load_four(x, tile + lane * 16 + i * 4 * kNumberRow);
#pragma unroll
      for (int j = 0; j < 4; ++j) most = fmaxf(most, fabsf(x[j]));
    }
    most = warp_max(most);
    if (lane == 0) size = size_for(most);
  }
  /// Begins to copy a tile, as it is: of eight channels the first four go where their high parts
  /// will be, and the others where the low parts will.
  __device__ __forceinline__ void copy(uint32_t to, const View& view, int tile,
                                       uint32_t live) const {
    const int row = lane / 4 % 2 + lane / 16 * 2, half = lane / 8 % 2;
    const float* from = numbers_of(view, tile, row, lane % 4 * 8 + half * 4);
    const uint32_t first = to + place(row, lane % 4) + half * kLowPart;
    // Four rows further pieces lie in another order: place().
    const uint32_t second = (first ^ 32) + 4 * 64;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      copy_piece((i % 2 ? second : first) + i / 2 * kEights, from + i * 4 * view.row_stride,
                 live >> (row + i * 4) & 1);
  }
  /// A tile that has come becomes pairs, in place: lanes write where they alone have read.
  __device__ __forceinline__ void split_tile(uint32_t tile, Size& size) const {
    const uint32_t mine = tile + place(lane / 4, lane % 4);
    float x[2][8], most = 0.f;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      load_four(x[i / 2] + i % 2 * 4, mine + i / 2 * kEights + i % 2 * kLowPart);
#pragma unroll
    for (int i = 0; i < 16; ++i) most = fmaxf(most, fabsf(x[i / 8][i % 8]));
    most = warp_max(most);
    const Size found = size_for(most);
    const float factor = power_of_2(found.shift);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t high[4], low[4];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        split(high[j], low[j], x[i][2 * j] * factor, x[i][2 * j + 1] * factor);
      store(mine + i * kEights, high), store(mine + i * kEights + kLowPart, low);
    }
    if (lane == 0) size = found;
  }

  /// This warp's rows of a chunk `offset` from this one: of the ring's tensors; of its own.
  __device__ __forceinline__ void copy_band(int offset, const View& first,
                                            const View& second) const {
    const int from = tile() + offset * kTiles, to = warp + offset * kTiles;
    const uint32_t bits = live(from);
    copy(band_tile(0, to), first, from, bits), copy(band_tile(1, to), second, from, bits);
    if (G::kOfKeys) copy_numbers(offset);
  }
  __device__ __forceinline__ void split_band(int offset) const {
    const int tile = warp + offset * kTiles;
#pragma unroll
    for (int i = 0; i < 2; ++i) split_tile(band_tile(i, tile), band_size(i, tile));
  }
  __device__ __forceinline__ void copy_own(int offset, const View& first,
                                           const View& second) const {
    const int from = tile() + offset * kTiles;
    const uint32_t bits = live(from);
    copy_numbers_of(own_tile(0, offset), first, from, bits);
    if (G::kOwnTensors > 1) copy_numbers_of(own_tile(1, offset), second, from, bits);
    if (G::kSweep == Sweep::kQueries) copy_numbers(offset);
  }
  __device__ __forceinline__ void measure_own(int offset) const {
#pragma unroll
    for (int i = 0; i < G::kOwnTensors; ++i) measure(own_tile(i, offset), own_size(i, offset));
  }
  /// Numbers of the sixteen rows of a tile, counted from the chunk's first: see Shape.
  __device__ __forceinline__ float* numbers(int which, int tile) const {
    const int at = slot(tile >> 2) * kTiles + (tile & 3);
    return shared_at<float>(G::kRowNumbers + at * G::kNumberBytes) + which * kBlockDim;
  }
  /// Bits of the warp's rows of the chunk `offset` from this one.
  __device__ __forceinline__ uint32_t& bits(int offset) const {
    return shared_at<uint32_t>(G::kBits)[(slot(offset) * kTiles + warp) * kWarpSize + lane];
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
      float* to = numbers(half, warp + offset * kTiles) + row;
      const float* norms = args.normalisers + row_index(G::kMaps, 0) + token;
      if (half ? row_sums() : args.has_near)
        copy_number_async(to, half ? norms : args.log_sum_exp + row_index(1, 0) + token);
      if (G::kMaps > 1 && row_sums() && half < G::kMaps - 1)
        copy_number_async(to + 2 * kBlockDim, norms + (1 + half) * int64_t(args.length));
    }
  }
  /// Writes sixteen rows of results; zeros for dead ones.
  __device__ __forceinline__ void write(const View& view, const Rows& results) const {
    const uint32_t bits = live(tile());
    float* to =
        static_cast<float*>(view.data) +
        (b * view.batch_stride + h * view.head_stride + tile() * kBlockDim * view.row_stride) +
        (lane / 4 * static_cast<int>(view.row_stride) + lane % 4 * 2);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane / 4 + r * 8;
      if (tile() * kBlockDim + row >= args.length) continue;
      const bool alive = bits >> row & 1;
#pragma unroll
      for (int n = 0; n < kBlocks * 2; ++n) {
        const float* c = results[n / 2][n % 2] + 2 * r;
        *reinterpret_cast<float2*>(to + r * 8 * view.row_stride + n * 8) =
            alive ? make_float2(c[0], c[1]) : make_float2(0.f, 0.f);
      }
    }
  }

 private:
  template <int kBarrier, int kCount>
  static __device__ __forceinline__ void meet() {
    asm volatile("bar.sync %0, %1;\n" ::"n"(kBarrier), "n"(kCount) : "memory");
  }
  template <int kBarrier>
  static __device__ __forceinline__ void arrive() {
    asm volatile("bar.arrive %0, %1;\n" ::"n"(kBarrier), "n"(kThreads) : "memory");
  }
  static __device__ __forceinline__ void load_four(float* to, uint32_t at) {
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];\n"
                 : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
                 : "r"(at)
                 : "memory");
  }
  static __device__ __forceinline__ void store(uint32_t at, const uint32_t (&r)[4]) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};\n" ::"r"(at), "r"(r[0]), "r"(r[1]),
                 "r"(r[2]), "r"(r[3])
                 : "memory");
  }
};

}  // namespace fmmformer::cuda::narrow_fp32
