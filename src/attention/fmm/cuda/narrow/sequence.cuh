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
  int ring = 0;   // its slot in rings of three
  uint32_t lane;  // so that it is divided by shifts

  __device__ explicit Sequence(const SweepArgs& args) : args(args) {
    // Not divided by the number of heads: before all else, that would be a microsecond.
    b = blockIdx.z * gridDim.y + blockIdx.y, h = blockIdx.x;
    pair = b * args.heads + h;
    // The same in every lane, as the compiler sees from the shuffle.
    warp = __shfl_sync(~0u, threadIdx.x / kWarpSize, 0);
    lane = lane_id();
    chunks = (args.length + kRows - 1) / kRows;
  }
  /// What lanes add to addresses is made anew for every chunk: computed before the walk, it would
  /// be spilled.
  __device__ __forceinline__ void forget() { asm volatile("" : "+r"(lane)); }
  /// The lane's rows of a tile, as row_of(i); which of a row's four lanes it is. Neither reads the
  /// thread's number again, which takes long; the keys' sweep alone has no register to spare.
  __device__ __forceinline__ uint32_t row(int i) const { return lane / 4 + i / 2 * 8; }
  __device__ __forceinline__ uint32_t quad() const {
    return (G::kOfKeys ? static_cast<uint32_t>(lane_id()) : lane) % 4;
  }
  /// The warp's tile, counted from the sequence's first.
  __device__ __forceinline__ int tile() const { return chunk * kTiles + warp; }
  __device__ __forceinline__ void begin_at(int first) { chunk = first, ring = first % 3; }
  __device__ __forceinline__ void step_back() { --chunk, ring = ring == 0 ? 2 : ring - 1; }
  /// Of the chunk `offset` from this one, at most two: its place in a ring.
  __device__ __forceinline__ int slot(int offset) const {
    if (G::kSlots == 2) return (chunk + offset) & 1;
    const int to = ring + offset;
    return offset == 0 ? to : to < 0 ? to + 3 : to > 2 ? to - 3 : to;
  }
  /// Where rows of the chunk `offset` from this one are in a ring.
  __device__ __forceinline__ uint32_t band_chunk(int which, int offset) const {
    return kMemory + G::kBand + (which * G::kSlots + slot(offset)) * kChunkBytes;
  }
  /// A tile, counted from the chunk's first: from the chunk before to the one after.
  __device__ __forceinline__ uint32_t band_tile(int which, int tile) const {
    if constexpr (G::kSlots == 3) {  // from the chunk before to this one
      const int place = ring * kTiles + tile;
      return kMemory + G::kBand + which * 3 * kChunkBytes +
             (place < 0 ? place + 3 * kTiles : place) * kTileBytes;
    } else {
      return band_chunk(which, tile >> 2) + (tile & 3) * kTileBytes;
    }
  }
  __device__ __forceinline__ uint32_t own_chunk(int which, int offset) const {
    return kMemory + G::kOwn +
           (which * G::kOwnSlots + (G::kOwnSlots > 1 ? slot(offset) : 0)) * kChunkBytes;
  }
  __device__ __forceinline__ uint32_t own_tile(int which) const {
    return own_chunk(which, 0) + warp * kTileBytes;
  }
  __device__ __forceinline__ uint32_t features(int map) const {
    return kMemory + G::kFeatures + map * kChunkBytes;
  }
  __device__ __forceinline__ uint32_t state(int map) const {
    return kMemory + G::kStates + map * G::kStateBytes;
  }
  /// Of the lane's channels 2t and 2t + 1 of sixteen, and of eight further: those of block s.
  __device__ __forceinline__ float4 weights(int field, int s) const {
    return shared_at<float4>(G::kWeights)[(field * kDim + int(quad()) * 8) / 4 + s];
  }
  __device__ __forceinline__ float* sums(int map) const {
    return shared_at<float>(G::kSums) + map * kDim;
  }
  __device__ bool row_sums() const { return args.normaliser == Normaliser::kRowSum; }
  /// Of one of `fields` numbers that every row has, [pairs, fields, length].
  __device__ __forceinline__ int64_t row_index(int fields, int field) const {
    return (int64_t(pair) * fields + field) * args.length;
  }

  /// Bits of a tile's live tokens; none in the two before the sequence and after it. Ask early:
  /// what shared memory was asked for before comes before.
  __device__ __forceinline__ uint32_t live(int tile) const {
    uint32_t bits;
    asm volatile("ld.shared.u16 %0, [%1];\n"
                 : "=r"(bits)
                 : "r"(kMemory + G::kLive + (tile + 2) * 2)
                 : "memory");
    return bits;
  }
  __device__ void find_live() const {
    const int words = chunks * 2 + 2;
    if (!args.token_mask) {
      for (int word = threadIdx.x; word < words; word += blockDim.x) {
        const int left = args.length - (word - 1) * 32;  // tokens, this word's first among them
        const uint32_t bits = left >= 32 ? ~0u : left > 0 ? (1u << left) - 1 : 0u;
        shared_at<uint32_t>(G::kLive)[word] = word > 0 ? bits : 0u;
      }
      return;
    }
#pragma unroll 1
    for (int word = threadIdx.x / kWarpSize; word < words; word += blockDim.x / kWarpSize) {
      const int token = (word - 1) * 32 + lane_id();
      const bool mine =
          token >= 0 && token < args.length && args.token_mask[int64_t(b) * args.length + token];
      const uint32_t bits = __ballot_sync(~0u, mine);
      if (lane_id() == 0) shared_at<uint32_t>(G::kLive)[word] = bits;
    }
  }
  /// The weight that this thread brings, of [fields][kDim], the near field's last: asked for before
  /// all else, and kept when it has come. Those of a lane of four lie side by side.
  __device__ float own_weight() const {
    static_assert(G::kFields * kDim <= kThreads);
    const int field = threadIdx.x / kDim, channel = threadIdx.x % kDim;
    if (field > G::kMaps) return 0.f;
    return field == G::kMaps ? weight_value(args.near_weight, 0, h, channel)
                             : weight_value(args.far_weight, field, h, channel);
  }
  __device__ void keep_weight(float x) const {
    const int field = threadIdx.x / kDim;
    if (field > G::kMaps) return;
    const bool near = field == G::kMaps && G::kSweep == Sweep::kBoth;  // with its factors
    const int place = field * kDim + beside_quad(threadIdx.x % kDim);
    shared_at<float>(G::kWeights)[place] = near ? x * args.keep_factor : x;
    if (!G::kForward)
      shared_at<Elem>(G::kOperands)[threadIdx.x] =
          Elem(near ? x * (args.near_scale * args.keep_factor) : x);
  }
  /// What sums begin with: nothing.
  __device__ void clear_states() const {
    static_assert(G::kSweep != Sweep::kBoth);
    if (!G::kForward && threadIdx.x < G::kMaps * kDim)
      shared_at<float>(G::kSums)[threadIdx.x] = 0.f;
    for (int i = threadIdx.x; i < G::kMaps * G::kStateBytes / 16; i += blockDim.x)
      shared_at<uint4>(G::kStates)[i] = make_uint4(0, 0, 0, 0);
  }
  __device__ void fill_units() const {
    if (threadIdx.x >= kTileBytes / 16) return;
    const uint32_t row = threadIdx.x / 4, piece = threadIdx.x % 4;
    const uint32_t one = piece == 0 ? kOnes & 0xffffu : 0;
    *shared_at<uint4>(G::kUnits + place(row, piece)) = make_uint4(one, one, one, one);
  }
  __device__ __forceinline__ const View& view(Tensor tensor) const {
    switch (tensor) {
      case kQ:
        return args.q;
      case kK:
        return args.k;
      case kV:
        return args.v;
      case kOut:
        return args.out;
      case kGradOut:
        return args.grad_out;
      case kDq:
        return args.dq;
      case kDk:
        return args.dk;
      default:
        return args.dv;
    }
  }
  /// Where the pair's rows begin, for piece(). A barrier must follow.
  __device__ void find_bases() const {
#pragma unroll
    for (int i = 0; i < kTensors; ++i) {
      const View& of = view(Tensor(i));
      if (threadIdx.x == i)
        shared_at<Elem*>(G::kBases)[i] =
            static_cast<Elem*>(of.data) + (b * of.batch_stride + h * of.head_stride);
    }
  }
  /// The lane's first piece of sixteen bytes of a tile's rows; and bytes from a row to the next.
  __device__ __forceinline__ char* piece(Tensor tensor, int tile) const {
    const uint32_t token = tile * kBlockDim + lane / 4;
    return shared_at<char*>(G::kBases)[tensor] +
           (uint64_t(token) * row_bytes(tensor) + lane % 4 * 16);
  }
  __device__ __forceinline__ uint32_t row_bytes(Tensor tensor) const {
    return static_cast<uint32_t>(view(tensor).row_stride) * sizeof(Elem);
  }
  /// Begins to copy a tile. Dead rows become zeros, whatever memory holds there.
  __device__ __forceinline__ void copy(uint32_t to, Tensor tensor, int tile, uint32_t live) const {
    const char* from = piece(tensor, tile);
    const uint64_t eight_rows = row_bytes(tensor) * 8;
    const uint32_t bits = live >> lane / 4;
    const uint32_t at = to + place(lane / 4, lane % 4);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(at + i * 8 * kRowBytes),
                   "l"(from + i * eight_rows), "r"((bits >> i * 8 & 1) * 16)
                   : "memory");
    }
  }
  /// This warp's rows of a chunk `offset` from this one: of the ring's tensors; of its own.
  __device__ __forceinline__ void copy_band(int offset, Tensor first, Tensor second) const {
    const uint32_t to = band_chunk(0, offset) + warp * kTileBytes;
    const int from = tile() + offset * kTiles;
    const uint32_t bits = live(from);
    copy(to, first, from, bits), copy(to + G::kSlots * kChunkBytes, second, from, bits);
    if (G::kOfKeys) copy_numbers(offset);
  }
  __device__ __forceinline__ void copy_own(int offset, Tensor first, Tensor second) const {
    const int from = tile() + offset * kTiles;
    const uint32_t bits = live(from), in_chunk = warp * kTileBytes;
    copy(own_chunk(0, offset) + in_chunk, first, from, bits);
    if (G::kOwnTensors > 1) copy(own_chunk(1, offset) + in_chunk, second, from, bits);
    if (G::kSweep == Sweep::kQueries) copy_numbers(offset);
  }
  /// Numbers of the sixteen rows of a tile, counted from the chunk's first: see Shape.
  __device__ __forceinline__ float* numbers(int which, int tile) const {
    const int at = G::kOfKeys ? ((chunk + (tile >> 2)) & 1) * kTiles + (tile & 3) : tile;
    return shared_at<float>(G::kRowNumbers + at * G::kNumberBytes) + which * kBlockDim;
  }
  /// What forward keeps of a chunk: see Entry.
  __device__ __forceinline__ unsigned char* entry(int of_chunk) const {
    return args.chunk_states + (int64_t(pair) * chunks + of_chunk) * Entry::bytes(G::kMaps);
  }
  /// In forward, where its numbers are in shared memory, by their place in the entry; `numbers` a
  /// tile.
  __device__ __forceinline__ float* kept(int place, int numbers) const {
    const int offset = place - Entry::factors(G::kMaps) + (chunk & 1) * G::kKeptBytes;
    return shared_at<float>(G::kKeptNumbers + offset) + warp * numbers;
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
      const int half = int(lane / kBlockDim), row = int(lane % kBlockDim);
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
  __device__ __forceinline__ void write(Tensor tensor, const Rows& results, uint32_t stage) const {
    Fragments f;
#pragma unroll
    for (int s = 0; s < kBlocks; ++s) f[s] = rounded(results[s]);
    write(tensor, f, stage);
  }
  __device__ __forceinline__ void write(Tensor tensor, const Fragments& results,
                                        uint32_t stage) const {
    __syncwarp();
#pragma unroll
    for (int s = 0; s < kBlocks; ++s) store_matrix(stage + (by_row(lane) ^ s * 32), results[s]);
    __syncwarp();
    const uint32_t bits = live(tile());
    char* to = piece(tensor, tile());
    const uint64_t eight_rows = row_bytes(tensor) * 8;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t row = lane / 4 + i * 8;
      uint4 piece;
      asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];\n"
                   : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w)
                   : "r"(stage + place(row, lane % 4))
                   : "memory");
      const bool all = bits == 0xffffu;
      if (!all && !(bits >> row & 1)) piece = make_uint4(0, 0, 0, 0);
      if (all || tile() * kBlockDim + int(row) < args.length)
        asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};\n" ::"l"(to + i * eight_rows),
                     "r"(piece.x), "r"(piece.y), "r"(piece.z), "r"(piece.w)
                     : "memory");
    }
  }
};

}  // namespace fmmformer::cuda::narrow
