// SPDX-License-Identifier: Apache-2.0
// A sequence in a thread block's shared memory: how its rows get there and results away, and what a
// warp knows of it.
#pragma once

#include "attention/fmm/cuda/whole/shape.cuh"

namespace fmmformer::cuda::whole {

enum Tensor { kQueries, kKeys, kValues, kGradients };

/// What forward left of rows g and g + 8.
template <typename G>
struct RowNumbers {
  float log_sum_exp[2], norms[G::kMaps][2];
};

template <typename G>
struct Sequence {
  using Elem = typename G::Elem;
  const SweepArgs& args;
  int pair, b, h, warp, warps, rounds;
  int memory;        // the warp's own
  int round, tile;   // that the warp is at
  int before[2];     // from that tile's rows to those of the one before, and before that; or 0
  LanePlaces lanes;

  __device__ Sequence(const SweepArgs& args, int rounds) : args(args), rounds(rounds) {
    // Neighbouring heads have neighbouring rows, and neighbouring blocks run at the same time.
    h = blockIdx.x, b = blockIdx.y + blockIdx.z * gridDim.y, pair = b * args.heads + h;
    // The same in every lane, as the compiler sees from the shuffle.
    warp = __shfl_sync(~0u, threadIdx.x / kWarpSize, 0), warps = blockDim.x / kWarpSize;
    memory = G::kWarps + warp * G::kWarpBytes;
    const int lane = lane_id(), row = lane % 16, column = lane / 16 * 8 + lane % 8;
    const uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(shared_at<char>(0))) +
                          G::kWarps + warps * G::kWarpBytes + warp * G::kTileStep;
#pragma unroll
    for (int s = 0; s < G::kBlocks; ++s) {
      lanes.by_row[s] =
          base + 2 * (row * G::kStride + G::place(row, s * kBlockDim + lane / 16 * 8));
      lanes.by_column[s] =
          base + 2 * (column * G::kStride + G::place(column, s * kBlockDim + lane / 8 % 2 * 8));
    }
    round = 0, tile = warp;
    find_before();
  }
  __device__ __forceinline__ bool exists() const { return b < args.batch; }
  __device__ __forceinline__ void go_to(int to) {
    const int step = (to - round) * warps;
#pragma unroll
    for (int s = 0; s < G::kBlocks; ++s) {
      lanes.by_row[s] += step * G::kTileStep, lanes.by_column[s] += step * G::kTileStep;
      // Kept, not computed anew for every load.
      asm volatile("" : "+r"(lanes.by_row[s]), "+r"(lanes.by_column[s]));
    }
    round = to, tile += step;
    find_before();
  }
  __device__ __forceinline__ int first_token() const { return tile * kBlockDim; }
  /// Rows of the tile so many tiles further: -2 to 2.
  __device__ __forceinline__ TileAt rows(Tensor which, int further = 0) const {
    const int step = further < 0 ? before[-1 - further] : further * G::kTileStep;
    return {lanes, step + which * G::kTileBytes};
  }
  __device__ __forceinline__ uint32_t live_of(int tile) const {
    return shared_at<uint32_t>(G::kLive)[tile];
  }
  __device__ __forceinline__ uint32_t live() const { return live_of(tile); }
  template <typename T>
  __device__ __forceinline__ T* own(int offset) const {
    return shared_at<T>(memory + offset);
  }
  /// What the queries' side of a map leaves for the keys': far_scale / norm of the tile's rows, and
  /// their dots.
  __device__ __forceinline__ float* factors(int map) const {
    return own<float>(G::kNumbers) + map * kBlockDim;
  }
  __device__ __forceinline__ float* dots(int map) const { return factors(G::kMaps + map); }
  /// Of one of `fields` numbers that every row has, [pairs, fields, length].
  __device__ int64_t row_index(int fields, int field) const {
    return (int64_t(pair) * fields + field) * args.length;
  }
  __device__ __forceinline__ Weights<G> weights() const {
    strips::Layout layout = {};
    layout.weights = G::kWeights;
    return Weights<G>(layout, args);
  }
  __device__ bool row_sums() const { return args.normaliser == Normaliser::kRowSum; }
  /// The states that a round begins with, [maps][kStateSize].
  __device__ __forceinline__ float* carry(int slot) const {
    return shared_at<float>(G::kWarps + warps * (G::kWarpBytes + rounds * G::kTileStep) +
                            slot * G::kCarryBytes);
  }

  /// Asked for long before they are needed.
  __device__ __forceinline__ void load_numbers(RowNumbers<G>& numbers) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int token = first_token() + row_of(2 * r);
      const bool inside = token < args.length;
      numbers.log_sum_exp[r] =
          inside && args.has_near ? args.log_sum_exp[row_index(1, 0) + token] : INFINITY;
#pragma unroll
      for (int l = 0; l < G::kMaps; ++l) {
        const bool wanted = inside && !G::kCareful && row_sums();
        numbers.norms[l][r] =
            wanted ? args.normalisers[row_index(G::kMaps, l) + token] : args.fixed_norm;
      }
    }
  }
  /// Which of the tile's tokens are live, for all to know.
  __device__ uint32_t find_live() const {
    const int token = first_token() + lane_id() % kBlockDim;
    const bool mine = token < args.length &&
                      (!args.token_mask || args.token_mask[int64_t(b) * args.length + token]);
    const uint32_t bits = __ballot_sync(~0u, mine) & 0xffffu;
    if (lane_id() == 0) shared_at<uint32_t>(G::kLive)[tile] = bits;
    return bits;
  }
  static constexpr int kAcross = G::kDim / 8, kRowsAtOnce = kWarpSize / kAcross,
                       kRounds = kBlockDim / kRowsAtOnce;
  /// The lane's first piece of sixteen bytes of the tile's rows.
  __device__ __forceinline__ Elem* piece(const View& view) const {
    Elem* head = static_cast<Elem*>(view.data) + (b * view.batch_stride + h * view.head_stride);
    const int token = first_token() + lane_id() / kAcross;
    return head + token * view.row_stride + lane_id() % kAcross * 8;
  }
  static __device__ __forceinline__ int piece_in_tile(int row) {
    return row * G::kStride + G::place(row, lane_id() % kAcross * 8);
  }
  /// Begins to copy the tile's rows. Dead ones become zeros, whatever memory holds there.
  __device__ __forceinline__ void copy(Tensor which, const View& view, uint32_t bits) const {
    Elem* to = shared_at<Elem>(G::kWarps + warps * G::kWarpBytes + tile * G::kTileStep +
                               which * G::kTileBytes);
    const Elem* from = piece(view);
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int row = lane_id() / kAcross + i * kRowsAtOnce;
      copy_async(to + piece_in_tile(row), from + i * kRowsAtOnce * view.row_stride,
                 bits >> row & 1);
    }
  }
  /// Writes the tile's rows of a result; zeros for dead ones.
  __device__ __forceinline__ void write(const View& view, const Blocks<G>& results) const {
    Elem* stage = own<Elem>(G::kStage);
    const int g = lane_id() / 4;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < G::kBlocks * 4; ++i) {
      const float* pair = results[i / 4][i / 2 % 2] + i % 2 * 2;
      *reinterpret_cast<uint32_t*>(stage + (g + i % 2 * 8) * G::kStride + G::place(g, i / 2 * 8) +
                                   lane_id() % 4 * 2) = Bf16::pack(pair[0], pair[1]);
    }
    __syncwarp();
    const uint32_t bits = live();
    Elem* to = piece(view);
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int row = lane_id() / kAcross + i * kRowsAtOnce;
      uint4 piece = *reinterpret_cast<const uint4*>(stage + piece_in_tile(row));
      if (!(bits >> row & 1)) piece = make_uint4(0, 0, 0, 0);
      if (first_token() + row < args.length)
        *reinterpret_cast<uint4*>(to + i * kRowsAtOnce * view.row_stride) = piece;
    }
  }

 private:
  __device__ __forceinline__ void find_before() {
    before[0] = tile >= 1 ? -G::kTileStep : 0;
    before[1] = tile >= 2 ? -2 * G::kTileStep : before[0];
  }
};

}  // namespace fmmformer::cuda::whole
