// SPDX-License-Identifier: Apache-2.0
// Rows on their way to shared memory, and the features that are made of them. Each of these is done
// by one warpgroup; `thread` is its number there.
#pragma once

#include "attention/fmm/cuda/chunks/both_sides/results.cuh"

namespace fmmformer::cuda::chunks::both_sides {

/// Begins to copy a chunk's rows of a tensor. Dead tokens and those beyond the sequence become
/// zeros, whatever memory holds there.
template <typename AnyWalk>
__device__ __forceinline__ void begin_chunk(const AnyWalk& walk, int tensor, int chunk, int to,
                                            int thread) {
  using G = typename AnyWalk::Geometry;
  const int row = thread / G::kPieces, piece = thread % G::kPieces;
  const uint64_t mine = walk.live(chunk) >> row;
  const Elem* from = walk.row_piece(tensor, chunk * kChunk + row, piece);
  const int64_t stride = walk.row_stride(tensor);
  to += piece_place<G>(row, piece);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    copy_async(shared_at<Elem>(to + i * G::kTile), from + i * kBlockDim * stride,
               mine >> i * kBlockDim & 1);
  }
}
/// The chunk `further` from the walk's.
template <typename G>
__device__ __forceinline__ void begin_rows_of(const Walk<G>& walk, int tensor, int further,
                                              int thread) {
  begin_chunk(walk, tensor, walk.chunk + further, walk.area(tensor, further), thread);
}
/// The same of a map's normalisers and, with the first map's, of log_sum_exp.
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
  copy_number_async(walk.numbers(near ? 0 : 1 + map, chunk) + row,
                    source + min(chunk * kChunk + row, args.length - 1));
}

/// Asks for a map's state before the chunk.
template <typename G>
__device__ __forceinline__ void begin_state(const Walk<G>& walk, int chunk, int map,
                                            const CopyEvent& event) {
  using M = Memory<G>;
  const int64_t chunks = (walk.args.length + kChunk - 1) / kChunk;
  const unsigned char* entry =
      walk.args.chunk_states + (walk.pair * chunks + chunk) * entry_bytes(G::kMaps);
  event.expect(kStateBytes + kKeySumBytes);
  event.begin(shared_at<char>(M::kBefore + map * G::kArea), entry + map * kStateBytes, kStateBytes);
  event.begin(shared_at<char>(M::kKeySums + map * kKeySumBytes),
              entry + G::kMaps * kStateBytes + map * kKeySumBytes, kKeySumBytes);
}

/// The blend weight of a map, and what its feature map does before the first one's: elu_flip turns
/// signs.
struct Map {
  int index;
  float weight;

  __device__ Map(int index, float weight) : index(index), weight(weight) {}
  __device__ __forceinline__ void forget() { asm volatile("" : "+r"(index)); }  // as Walk does
  __device__ __forceinline__ uint32_t turned(uint32_t x) const {
    return index == 0 ? x : x ^ 0x80008000u;
  }
  __device__ __forceinline__ float sign() const { return index == 0 ? 1.f : -1.f; }
};

/// Zeros for dead tokens' feature rows, since features of 0 are not 0.
template <typename G>
__device__ __forceinline__ void clear_dead(int features, uint64_t live, int thread) {
  if (live == ~uint64_t(0)) return;
  const int row = thread / G::kPieces, offset = piece_place<G>(row, thread % G::kPieces);
#pragma unroll 1
  for (int i = 0; i < kTiles; ++i) {
    if (!(live >> (row + i * kBlockDim) & 1))
      *shared_at<uint4>(features + i * G::kTile + offset) = make_uint4(0, 0, 0, 0);
  }
}
/// A thread's pieces of 64 rows, all at once: the compiler does not load after stores that might be
/// in the same place.
template <typename G>
__device__ __forceinline__ void load_pieces(uint4 (&raw)[kTiles], int rows, int offset) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) raw[i] = *shared_at<uint4>(rows + offset + i * G::kTile);
}

/// One map's feature rows of 64 queries, from raw rows at `rows`: times weight * far_scale / norm
/// and, kPlain, without. norm_of(tile, row).
template <typename G, bool kPlain, typename NormOf>
__device__ __forceinline__ void make_query_features(const SweepArgs& args, const Map& map, int rows,
                                                    int plain, int scaled, uint64_t live,
                                                    int thread, const NormOf& norm_of) {
  const int row = thread / G::kPieces, offset = piece_place<G>(row, thread % G::kPieces);
  uint4 raw[kTiles];
  float factors[kTiles];
  load_pieces<G>(raw, rows, offset);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const float norm = has_row_sums(args) ? norm_of(i, row) : args.fixed_norm;
    factors[i] = __fdividef(map.weight * args.far_scale, norm);
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
/// All maps' feature rows of 64 keys. kShort: by less code, for what is done once, when
/// instructions take longer to come than to run.
template <typename G, bool kShort = false>
__device__ __forceinline__ void make_key_features(int rows, int features, uint64_t live,
                                                  int thread) {
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
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l) clear_dead<G>(features + l * G::kArea, live, thread);
}

}  // namespace fmmformer::cuda::chunks::both_sides
