// SPDX-License-Identifier: Apache-2.0
// A sequence in a thread block's shared memory: how its rows get there and results away, and what a
// warp knows of it.
#pragma once

#include "attention/fmm/cuda/whole/shape.cuh"

namespace fmmformer::cuda::whole {

enum Tensor { kQueries, kKeys, kValues, kGradients };

/// Tiles are counted from the warp's first on: -2 and -1 are those of the warp before, 2 and 3 the
/// next one's.
template <typename G>
struct Sequence {
  using Elem = typename G::Elem;
  const SweepArgs& args;
  int b, h, warp, warps;
  int memory;         // the warp's own
  int before, after;  // from there to that of the warp before and the next; 0 if there is none
  int turn;           // from the first rows to this sequence's: 0 or kRowsBytes
  LanePlaces lanes;
  uint32_t live_bits = 0;  // which of the warp's tokens are live

  __device__ explicit Sequence(const SweepArgs& args) : args(args), turn(0) {
    // Neighbouring heads have neighbouring rows, and neighbouring blocks run at the same time.
    h = blockIdx.x, b = blockIdx.y;
    // The same in every lane, as the compiler sees from the shuffle.
    warp = __shfl_sync(~0u, threadIdx.x / kWarpSize, 0), warps = blockDim.x / kWarpSize;
    memory = G::kWarps + warp * G::kWarpBytes;
    before = warp > 0 ? -G::kWarpBytes : 0, after = warp + 1 < warps ? G::kWarpBytes : 0;
    const int lane = lane_id(), row = lane % 16, column = lane / 16 * 8 + lane % 8;
    const uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(shared_at<char>(memory)));
    lanes.by_row = base + 2 * (row * G::kStride + G::place(row, lane / 16 * 8));
    lanes.by_column = base + 2 * (column * G::kStride + G::place(column, lane / 8 % 2 * 8));
    // Kept, not computed anew for every load.
    asm volatile("" : "+r"(lanes.by_row), "+r"(lanes.by_column));
  }
  /// To the next one of this block: same head, later batch entry.
  __device__ __forceinline__ void advance() {
    b += gridDim.y;
    const int step = G::kRowsBytes - 2 * turn;
    turn += step, lanes.by_row += step, lanes.by_column += step;
  }
  __device__ __forceinline__ int pair() const { return b * args.heads + h; }
  __device__ __forceinline__ bool exists() const { return b < args.batch; }
  __device__ __forceinline__ bool has_next() const { return b + int(gridDim.y) < args.batch; }
  __device__ __forceinline__ int first_token(int tile) const {
    return warp * kTokens + tile * kBlockDim;
  }
  __device__ __forceinline__ int offset(Tensor which, int tile) const {
    const int of_warp = tile < 0 ? before : tile >= kTiles ? after : 0;
    return of_warp + G::kRows + ((tile + kTiles) % kTiles * G::kTensors + which) * G::kTileBytes;
  }
  __device__ __forceinline__ TileAt rows(Tensor which, int tile) const {
    return {lanes, offset(which, tile)};
  }
  __device__ __forceinline__ uint32_t live_word(int other) const {
    return shared_at<uint32_t>(G::kLive)[(turn ? kMostWarps : 0) + other];
  }
  /// Of a tile of this warp. Backward has a register for it.
  __device__ __forceinline__ uint32_t live(int tile) const {
    return (G::kBackward ? live_bits : live_word(warp)) >> tile * kBlockDim & 0xffffu;
  }
  template <typename T>
  __device__ __forceinline__ T* own(int offset) const {
    return shared_at<T>(memory + offset);
  }
  /// What the queries' side of a map leaves for the keys': far_scale / norm of a tile's rows, and
  /// their dots.
  __device__ __forceinline__ float* factors(int map, int tile) const {
    return own<float>(G::kNumbers) + map * kTokens + tile * kBlockDim;
  }
  __device__ __forceinline__ float* dots(int map, int tile) const {
    return factors(G::kMaps + map, tile);
  }
  /// Of one of `fields` numbers that every row has, [pairs, fields, length].
  __device__ int64_t row_index(int fields, int field) const {
    return (int64_t(pair()) * fields + field) * args.length;
  }
  __device__ __forceinline__ Weights<G> weights() const {
    strips::Layout layout = {};
    layout.weights = G::kWeights;
    return Weights<G>(layout, args);
  }
  __device__ bool row_sums() const { return args.normaliser == Normaliser::kRowSum; }

  /// What forward left of the tile's rows: log_sum_exp, or a map's normalisers.
  __device__ __forceinline__ const float* log_sum_exp(int tile) const {
    return own<float>(G::kSavedNumbers) + tile * kBlockDim;
  }
  __device__ __forceinline__ const float* norms(int map, int tile) const {
    return log_sum_exp(tile) + (1 + map) * kTokens;
  }
  /// Begins to copy them. Rows behind the end have no probabilities.
  __device__ void copy_numbers() const {
    const int token = warp * kTokens + lane_id();
    float* to = own<float>(G::kSavedNumbers) + lane_id();
    const bool inside = token < args.length;
    if (!inside || !args.has_near) *to = INFINITY;
    if (inside && args.has_near) copy_number_async(to, args.log_sum_exp + row_index(1, 0) + token);
#pragma unroll
    for (int l = 0; l < G::kMaps && !G::kCareful; ++l) {
      if (inside && row_sums())
        copy_number_async(to + (1 + l) * kTokens,
                          args.normalisers + row_index(G::kMaps, l) + token);
    }
  }
  /// Which of the warp's tokens are live, for all to know.
  __device__ uint32_t find_live() const {
    const int token = warp * kTokens + lane_id();
    const bool mine = token < args.length &&
                      (!args.token_mask || args.token_mask[int64_t(b) * args.length + token]);
    const uint32_t bits = __ballot_sync(~0u, mine);
    if (lane_id() == 0) shared_at<uint32_t>(G::kLive)[(turn ? kMostWarps : 0) + warp] = bits;
    return bits;
  }
  static constexpr int kAcross = G::kDim / 8;  // pieces of sixteen bytes in a row
  static_assert(kWarpSize / kAcross == kBlockDim);
  /// The lane's first piece of sixteen bytes of the warp's rows.
  __device__ __forceinline__ Elem* piece(const View& view) const {
    Elem* head = static_cast<Elem*>(view.data) + (b * view.batch_stride + h * view.head_stride);
    const uint32_t token = warp * kTokens + lane_id() / kAcross;
    return head + uint64_t{token} * static_cast<uint32_t>(view.row_stride) +
           lane_id() % kAcross * 8;
  }
  /// Where it lies in a tile.
  static __device__ __forceinline__ int piece_in_tile() {
    const int row = lane_id() / kAcross;
    return row * G::kStride + G::place(row, lane_id() % kAcross * 8);
  }
  /// Begins to copy the warp's rows. Dead ones become zeros, whatever memory holds there.
  __device__ __forceinline__ void copy(Tensor which, const View& view, uint32_t bits) const {
    const Elem* from = piece(view);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      copy_async</*kWholeLine=*/true>(
          own<Elem>(turn + offset(which, tile)) + piece_in_tile(),
          from + tile * kBlockDim * static_cast<uint32_t>(view.row_stride),
          bits >> (tile * kBlockDim + lane_id() / kAcross) & 1);
    }
  }
  /// Writes sixteen rows of results by way of `stage`, a tile nobody else reads; zeros for dead
  /// ones.
  __device__ __forceinline__ void write(const View& view, int tile, const Blocks<G>& results,
                                        int stage) const {
    __syncwarp();
    store_block({lanes, stage}, rounded(results[0]));
    __syncwarp();
    const int row = lane_id() / kAcross;
    uint4 rows = *reinterpret_cast<const uint4*>(own<Elem>(turn + stage) + piece_in_tile());
    if (!(live(tile) >> row & 1)) rows = make_uint4(0, 0, 0, 0);
    if (first_token(tile) + row < args.length)
      *reinterpret_cast<uint4*>(piece(view) + tile * kBlockDim * view.row_stride) = rows;
  }
};

}  // namespace fmmformer::cuda::whole
