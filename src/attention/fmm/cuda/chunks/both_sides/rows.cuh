// SPDX-License-Identifier: Apache-2.0
// Rows on their way to shared memory, and the features that are made of them. What has a `thread`
// is done by one warpgroup, of whose threads it is the number.
#pragma once

#include "attention/fmm/cuda/chunks/both_sides/results.cuh"

namespace fmmformer::cuda::chunks::both_sides {

/// Begins to copy a chunk's rows of a tensor, G::kArea bytes; of tokens before and beyond the
/// sequence they are zeros. By one thread.
template <typename AnyWalk>
__device__ __forceinline__ void begin_chunk(const AnyWalk& walk, int tensor, int chunk, int to,
                                            const CopyEvent& event) {
  const int2 place = walk.batch_and_head();
  walk.maps.of[tensor].begin_load(shared_address(shared_at<char>(to)), place.x, chunk * kChunk,
                                  place.y, event);
}
/// The rows of a head in a tensor.
struct HeadRows {
  const Elem* first;
  int64_t stride;
  int length, channels;

  __device__ HeadRows(const View& of, const SweepArgs& args, int b, int h)
      : first(static_cast<const Elem*>(of.data) + b * of.batch_stride + h * of.head_stride),
        stride(of.row_stride),
        length(args.length),
        channels(args.head_dim) {}
};
/// As begin_chunk, by the threads of a warpgroup: for what is needed first. The copy engine takes a
/// microsecond to learn where a tensor is.
template <typename G>
__device__ __forceinline__ void copy_chunk(const HeadRows& rows, int chunk, int to, int thread) {
  const int row = thread / G::kPieces, piece = thread % G::kPieces, token = chunk * kChunk + row;
  const Elem* from = rows.first + token * rows.stride + piece * kPiece;
  to += piece_place<G>(row, piece);
  const int length = has_piece<G>(rows.channels, piece) ? rows.length : 0;
#pragma unroll
  for (int i = 0; i < kTiles; ++i)
    copy_async(shared_at<Elem>(to + i * G::kTile), from + i * kBlockDim * rows.stride,
               unsigned(token + i * kBlockDim) < unsigned(length));
}
/// Zeros for dead tokens' rows, whatever memory holds there.
template <typename G>
__device__ __forceinline__ void clear_dead(int rows, uint64_t live, int thread) {
  if (live == ~uint64_t(0)) return;
  const int row = thread / G::kPieces, offset = piece_place<G>(row, thread % G::kPieces);
#pragma unroll 1
  for (int i = 0; i < kTiles; ++i) {
    if (!(live >> (row + i * kBlockDim) & 1))
      *shared_at<uint4>(rows + i * G::kTile + offset) = make_uint4(0, 0, 0, 0);
  }
}

/// How far from the walk's chunk the rows are that are asked for during a step: keys and values are
/// needed a chunk earlier.
__device__ __forceinline__ int asked_ahead(int tensor) {
  return tensor == kK || tensor == kV ? -2 : -1;
}
/// Asks for the rows that the next step needs, whose places nobody has needed since the step
/// before. By a warpgroup, of which every warp asks for those of one tensor.
template <typename G>
__device__ __forceinline__ void begin_next_rows(const Walk<G>& walk) {
  static_assert(kRowTensors == kTiles);
  if (lane_id() != 0) return;
  const CopyEvent event = walk.event(kRowsCome);
  if (walk.tile == 0) event.expect(kRowTensors * G::kArea);
  const int further = asked_ahead(walk.tile);
  begin_chunk(walk, walk.tile, walk.chunk + further, walk.area(walk.tile, further), event);
}
/// Waits for them, and clears dead tokens' rows. By all threads; a barrier must follow.
template <typename G>
__device__ __forceinline__ void await_next_rows(const Walk<G>& walk) {
  walk.event(kRowsCome).wait(walk.chunk & 1);
  if (!walk.args.token_mask) return;
  const int thread = thread_anew();
#pragma unroll 1
  for (int tensor = thread / kGroupThreads; tensor < kRowTensors;
       tensor += Groups<G>::kThreads / kGroupThreads) {
    const int further = asked_ahead(tensor);
    clear_dead<G>(walk.area(tensor, further), walk.live(walk.chunk + further),
                  thread % kGroupThreads);
  }
}

/// Asks for a map's normalisers and, with the first map's, for log_sum_exp, of the chunk `further`
/// from the walk's.
template <typename G>
__device__ __forceinline__ void begin_numbers_of(const Walk<G>& walk, int further, int map,
                                                 int thread) {
  const SweepArgs& args = walk.args;
  const int row = thread % kChunk, chunk = walk.chunk + further;
  const bool near = thread >= kChunk;
  if (near ? map > 0 || !args.has_near : !has_row_sums(args)) return;
  const float* source =
      near ? args.log_sum_exp + int64_t(walk.pair) * args.length
           : args.normalisers + (int64_t(walk.pair) * G::kMaps + map) * args.length;
  copy_number_async(walk.numbers(near ? 0 : 1 + map, further) + row,
                    source + min(chunk * kChunk + row, args.length - 1));
}

/// Asks for what dropout leaves of a chunk's band, a word a thread; nobody may need the one before
/// any more.
template <typename G>
__device__ __forceinline__ void begin_dropout_word(const Walk<G>& walk, int chunk, int thread) {
  copy_number_async(
      shared_at<float>(Memory<G>::kDropout) + thread,
      reinterpret_cast<const float*>(dropout_word<G>(walk.args, walk.pair, chunk, thread)));
}

/// A map, and what its feature map does before the first one's: elu_flip turns signs.
template <typename G>
struct Map {
  int index;

  __device__ explicit Map(int index) : index(index) {}
  __device__ __forceinline__ void forget() { asm volatile("" : "+r"(index)); }  // as Walk does
  __device__ __forceinline__ float weight() const {
    return shared_at<float>(Memory<G>::kWeights)[index];
  }
  /// At which the state before the chunk arrives.
  __device__ __forceinline__ CopyEvent event() const { return Walk<G>::event(kStateComes + index); }
  __device__ __forceinline__ uint32_t turned(uint32_t x) const {
    return index == 0 ? x : x ^ 0x80008000u;
  }
  __device__ __forceinline__ float sign() const { return index == 0 ? 1.f : -1.f; }
};

/// Asks for a map's state before the chunk.
template <typename G>
__device__ __forceinline__ void begin_state(const Walk<G>& walk, int chunk, const Map<G>& map) {
  using M = Memory<G>;
  const unsigned char* entry = entry_of<G>(walk.args, walk.pair, chunk);
  const CopyEvent event = map.event();
  event.expect(kStateBytes + kKeySumBytes);
  event.begin(shared_at<char>(M::kBefore + map.index * G::kArea), entry + map.index * kStateBytes,
              kStateBytes);
  event.begin(shared_at<char>(M::kKeySums + map.index * kKeySumBytes),
              entry + G::kMaps * kStateBytes + map.index * kKeySumBytes, kKeySumBytes);
}

/// A thread's pieces of 64 rows, all at once: the compiler does not load after stores that might be
/// in the same place.
template <typename G>
__device__ __forceinline__ void load_pieces(uint4 (&raw)[kTiles], int rows, int offset) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) raw[i] = *shared_at<uint4>(rows + offset + i * G::kTile);
}

/// One map's feature rows of 64 queries (of channels beyond the head's, too: it is keys that have
/// zeros there), from raw rows at `rows`: times weight * far_scale / norm and, kPlain, without.
/// norm_of(tile, row).
template <typename G, bool kPlain, typename NormOf>
__device__ __forceinline__ void make_query_features(const SweepArgs& args, const Map<G>& map,
                                                    int rows, int plain, int scaled, uint64_t live,
                                                    int thread, const NormOf& norm_of) {
  const int row = thread / G::kPieces, offset = piece_place<G>(row, thread % G::kPieces);
  uint4 raw[kTiles];
  float factors[kTiles];
  load_pieces<G>(raw, rows, offset);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const float norm = has_row_sums(args) ? norm_of(i, row) : args.fixed_norm;
    factors[i] = __fdividef(map.weight() * args.far_scale, norm);
  }
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const uint32_t x[4] = {raw[i].x, raw[i].y, raw[i].z, raw[i].w};
    const int at = i * G::kTile + offset;
    uint32_t f[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) f[j] = feature_pair<0>(map.turned(x[j]), decay_of(x[j]));
    if (kPlain) *shared_at<uint4>(plain + at) = make_uint4(f[0], f[1], f[2], f[3]);
    const SplitFactor factor(factors[i]);
#pragma unroll
    for (int j = 0; j < 4; ++j) f[j] = factor.times(f[j]);
    *shared_at<uint4>(scaled + at) = make_uint4(f[0], f[1], f[2], f[3]);
  }
  // Features of 0 are not 0.
  if (kPlain) clear_dead<G>(plain, live, thread);
  clear_dead<G>(scaled, live, thread);
}
/// All maps' features of a piece of a key.
template <typename G>
__device__ __forceinline__ void make_key_pieces(const uint4& raw, int to) {
  const uint32_t x[4] = {raw.x, raw.y, raw.z, raw.w};
  uint32_t decay[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) decay[j] = decay_of(x[j]);
  each_map<G>([&](auto map) {
    constexpr int kMap = decltype(map)::value;
    uint32_t f[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) f[j] = feature_pair<kMap>(x[j], decay[j]);
    *shared_at<uint4>(to + kMap * G::kArea) = make_uint4(f[0], f[1], f[2], f[3]);
  });
}
/// All maps' feature rows of 64 keys, of which they have so many channels. kShort: by less code,
/// for what is done once, when instructions take longer to come than to run.
template <typename G, bool kShort = false>
__device__ __forceinline__ void make_key_features(int rows, int features, int channels,
                                                  uint64_t live, int thread) {
  const int offset = piece_place<G>(thread / G::kPieces, thread % G::kPieces);
  if constexpr (kShort) {
#pragma unroll 1
    for (int i = 0; i < kTiles; ++i)
      make_key_pieces<G>(*shared_at<uint4>(rows + offset + i * G::kTile),
                         features + offset + i * G::kTile);
  } else {
    uint4 raw[kTiles];
    load_pieces<G>(raw, rows, offset);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) make_key_pieces<G>(raw[i], features + offset + i * G::kTile);
  }
  if (!has_piece<G>(channels, thread % G::kPieces)) live = 0;
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l) clear_dead<G>(features + l * G::kArea, live, thread);
}

}  // namespace fmmformer::cuda::chunks::both_sides
