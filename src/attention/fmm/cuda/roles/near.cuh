// SPDX-License-Identifier: Apache-2.0
// The near roles' work on sixteen tokens: softmax inside the band, tile by tile of the other side.
// Where there are several, each computes all scores and its own slice of the result.
#pragma once

#include "attention/fmm/cuda/dropout.cuh"
#include "attention/fmm/cuda/roles/far.cuh"
#include "attention/fmm/cuda/roles/tiles.cuh"

namespace fmmformer::cuda::roles {

/// Which elements of a block of the band are inside, as bits: 4 * (column / 8) + i. `before`,
/// `after`: how far a column may lie below its row and above it.
__device__ __forceinline__ uint32_t band_bits(int column_minus_row, int before, int after) {
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int apart = column_minus_row + column_of(i / 4, i) - row_of(i % 4);
    if (apart >= -before && apart <= after) bits |= 1u << i;
  }
  return bits;
}
/// The same of live columns, from bits by token.
__device__ __forceinline__ uint32_t column_bits(uint32_t live) {
  const uint32_t mine = live >> lane_id() % 4 * 2;
  return (mine & 3) * 5 | (mine >> 8 & 3) * 0x50;
}

/// The band as seen from sixteen rows: tiles [begin, end) of the other side. What is inside depends
/// on how far the tile is away alone, and is kept for the nearest ones.
struct Band {
  int before, after;  // that columns may lie below and above their row
  uint64_t bits;      // of tiles -2, .. 2 away, eight each

  __device__ Band(int before, int after) : before(before), after(after), bits(0) {
    for (int away = -2; away <= 2; ++away) {
      bits |= uint64_t(band_bits(away * kBlockDim, before, after)) << (away + 2) * 8;
    }
  }
  __device__ int begin(int tile) const {
    return max(tile - (before + kBlockDim - 1) / kBlockDim, 0);
  }
  __device__ int end(int tile, int length) const {
    return min(tile + (after + kBlockDim - 1) / kBlockDim, (length - 1) / kBlockDim) + 1;
  }
  /// kNear: surely no tile is more than two away.
  template <bool kNear>
  __device__ __forceinline__ uint32_t inside(int row_tile, int column_tile, uint32_t live) const {
    const int away = column_tile - row_tile;
    const uint32_t band = kNear || abs(away) <= 2 ? uint32_t(bits >> (away + 2) * 8)
                                                  : band_bits(away * kBlockDim, before, after);
    return (live & 0xffffu) == 0xffffu ? band : band & column_bits(live);
  }
};

constexpr int kTilesAtOnce = 3;  // whose scores stay in registers; a longer band goes tile by tile

/// What a near role knows besides the tiles.
template <typename G>
struct NearStep {
  const SweepArgs& args;
  const Place<G>& place;
  const Tiles<G>& tiles;
  const float* weight;  // [kValueDim]
  Band band;
  uint64_t seed;
  float *log_sum_exp, *row_dots;  // by token
  int slice;
  int tile = 0;

  __device__ NearStep(const SweepArgs& args, const Place<G>& place, const Tiles<G>& tiles,
                      const float* weight, int before, int after, int slice)
      : args(args), place(place), tiles(tiles), weight(weight), band(before, after), slice(slice) {
    seed = dropout_seed(args);
    log_sum_exp = args.log_sum_exp + place.row_index(args, 0);
    row_dots = args.row_dots + place.row_index(args, args.all_maps + 1, args.all_maps, 0);
  }
  __device__ int first() const { return tile * kBlockDim; }
  __device__ int begin() const { return band.begin(tile); }
  __device__ int end() const { return band.end(tile, args.length); }
  /// Where the role's slice of the channels begins.
  __device__ int channel() const { return slice * G::kSliceDim; }
};

/// The step's own rows as operands: in registers, or of wide heads loaded whenever they are used.
template <typename G>
class OwnRows {
 public:
  __device__ OwnRows(const Elem* tile, const SweepArgs& args) : args_(args), tile_(tile) { keep(); }
  /// Times the weight, as load_weighted() has it.
  __device__ OwnRows(const Elem* tile, const float* weight, const SweepArgs& args)
      : args_(args), tile_(tile), weight_(weight) {
    keep();
  }
  /// c = rows tile^T.
  __device__ __forceinline__ void multiply_tile(Block& c, const Elem* tile) const {
    clear(c);
    if constexpr (kInRegisters) {
      Fragment other[G::kKeyBlocks];
      load<Side::kRight>(other, tile, G::kKeyStride);
      multiply(c, kept_, other);
    } else {
#pragma unroll
      for (int b = 0; b < G::kKeyBlocks; ++b)
        add_product(c, block(b), load<Side::kRight>(tile + b * kBlockDim, G::kKeyStride));
    }
  }

 private:
  static constexpr bool kInRegisters = G::kSlices == 1;
  __device__ __forceinline__ Fragment block(int b) const {
    return weight_ ? load_weighted<G>(tile_, b, weight_, args_)
                   : load(tile_ + b * kBlockDim, G::kKeyStride);
  }
  __device__ __forceinline__ void keep() {
    if constexpr (kInRegisters) {
#pragma unroll
      for (int b = 0; b < G::kKeyBlocks; ++b) kept_[b] = block(b);
    }
  }

  const SweepArgs& args_;
  const Elem* tile_;
  const float* weight_ = nullptr;
  Fragment kept_[kInRegisters ? G::kKeyBlocks : 1];
};

template <int kCount>
__device__ __forceinline__ void scale_rows(Block (&rows)[kCount], const float (&factor)[2]) {
#pragma unroll
  for (int b = 0; b < kCount; ++b) {
#pragma unroll
    for (int i = 0; i < 8; ++i) rows[b][i / 4][i % 4] *= factor[i % 4 / 2];
  }
}
/// sum[16, ..] += a tile[16, ..].
template <int kCount>
__device__ __forceinline__ void add_rows(Block (&sum)[kCount], const Fragment& a, const Elem* tile,
                                         int stride) {
#pragma unroll
  for (int b = 0; b < kCount; ++b)
    add_product(sum[b], a, load_turned<Side::kRight>(tile + b * kBlockDim, stride));
}

/// softmax's running maximum (of scores times log2 e), sum and weighted values of sixteen rows.
template <typename G>
struct Softmax {
  float peak[2] = {-INFINITY, -INFINITY}, total[2] = {0.f, 0.f};
  Block sum[G::kSliceBlocks];

  /// Raises the maximum to that of `s`, and returns what to subtract from scores: 0 for rows that
  /// saw nothing.
  template <int kTiles>
  __device__ __forceinline__ void raise(const Block (&s)[kTiles], float (&base)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float highest = peak[r];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) highest = fmaxf(highest, s[tile][i / 2][2 * r + i % 2]);
      }
      peak[r] = quad_max(highest);
      base[r] = peak[r] == -INFINITY ? 0.f : peak[r];
    }
  }
  /// Adds the tile of scores `s`, which turn into probabilities relative to `base`.
  __device__ __forceinline__ void add(Block& s, const float (&base)[2], const NearStep<G>& step,
                                      int key_tile) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      s[i / 4][i % 4] = Bf16::exp2(s[i / 4][i % 4] - base[i % 4 / 2]);
      total[i % 4 / 2] += s[i / 4][i % 4];
    }
    if (step.args.drop_below > 0) {
      Block kept;
      dropout_by_query(kept, step.args, step.seed, step.place.pair, step.first(),
                       key_tile * kBlockDim);
#pragma unroll
      for (int i = 0; i < 8; ++i) s[i / 4][i % 4] *= kept[i / 4][i % 4];
    }
    add_rows(sum, rounded(s), step.tiles.band_tile(1, key_tile) + step.channel(), G::kValueStride);
  }
};

/// result = softmax(...) v; writes log_sum_exp.
template <typename G>
__device__ __forceinline__ void near_forward(const NearStep<G>& step, float* result) {
  const SweepArgs& args = step.args;
  const OwnRows<G> q(step.tiles.own_tile(0, step.tile), args);
  Softmax<G> softmax;
  clear(softmax.sum);
  const float scale = args.near_scale * kLog2E;
  const int begin = step.begin(), end = step.end();
  const auto scores = [&](int tile, Block& s) {
    const uint32_t inside =
        step.band.template inside<G::kPlain>(step.tile, tile, step.tiles.live(tile));
    q.multiply_tile(s, step.tiles.band_tile(0, tile));
#pragma unroll
    for (int i = 0; i < 8; ++i)
      s[i / 4][i % 4] = inside >> i & 1 ? s[i / 4][i % 4] * scale : -INFINITY;
  };
  float base[2];
  if (end - begin <= kTilesAtOnce && (G::kPlain || !args.stages_tiles)) {
    Block s[kTilesAtOnce];
#pragma unroll
    for (int t = 0; t < kTilesAtOnce; ++t) {
      if (begin + t < end) {
        step.tiles.fetch(begin + t);
        scores(begin + t, s[t]);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) s[t][i / 4][i % 4] = -INFINITY;
      }
    }
    softmax.raise(s, base);
#pragma unroll
    for (int t = 0; t < kTilesAtOnce; ++t) {
      if (begin + t < end) softmax.add(s[t], base, step, begin + t);
    }
  } else {
#pragma unroll 1
    for (int tile = begin; tile < end; ++tile) {
      step.tiles.fetch(tile);
      Block s[1];
      scores(tile, s[0]);
      const float before[2] = {softmax.peak[0], softmax.peak[1]};
      softmax.raise(s, base);
      const float shrink[2] = {Bf16::exp2(before[0] - base[0]), Bf16::exp2(before[1] - base[1])};
      softmax.total[0] *= shrink[0], softmax.total[1] *= shrink[1];
      scale_rows(softmax.sum, shrink);
      softmax.add(s[0], base, step, tile);
    }
  }
  const uint32_t live = step.tiles.live(step.tile);
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float total = quad_sum(softmax.total[r]);
    const int token = step.first() + row_of(2 * r);
    if (step.slice == 0 && lane_id() % 4 == 0 && token < args.length) {
      // Infinity for rows that saw nothing or are dead: every later exp(score - log_sum_exp) is
      // then 0.
      const bool seen = (live >> row_of(2 * r) & 1) && total > 0.f;
      step.log_sum_exp[token] =
          seen ? (softmax.peak[r] + __log2f(total)) * (1.f / kLog2E) : INFINITY;
    }
    factor[r] = total > 0.f ? __fdividef(1.f, total) : 0.f;
  }
  scale_rows(softmax.sum, factor);
  store_result(result, G::kValueDim + kResultPad, softmax.sum);
}

/// result = the gradient with respect to q; writes the row dots, sum_j p_ij dp_ij. Returns <dO,
/// near field> of rows g and g + 8: the gradient of a weight that is equal for all channels.
template <typename G>
__device__ __forceinline__ float near_query(const NearStep<G>& step, float* result) {
  const SweepArgs& args = step.args;
  float log_sum[2], dot[2] = {0.f, 0.f}, by_weight = 0.f;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int token = step.first() + row_of(2 * r);
    log_sum[r] = token < args.length ? step.log_sum_exp[token] * kLog2E : INFINITY;
  }
  const OwnRows<G> q(step.tiles.own_tile(0, step.tile), args),
      grad(step.tiles.own_tile(1, step.tile), step.weight, args);
  const float grad_factor = uniform_weight(step.weight, args);
  Block dq[G::kSliceBlocks];
  clear(dq);
  const float scale = args.near_scale * kLog2E;
  const int begin = step.begin(), end = step.end();
  // p and dp of one tile: the softmax's gradient needs the sum over all tiles before any of them
  // can be used.
  const auto make = [&](int tile, Block& p, Block& dp) {
    step.tiles.fetch(tile);
    const uint32_t inside =
        step.band.template inside<G::kPlain>(step.tile, tile, step.tiles.live(tile));
    q.multiply_tile(p, step.tiles.band_tile(0, tile));
    grad.multiply_tile(dp, step.tiles.band_tile(1, tile));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& element = p[i / 4][i % 4];
      element = inside >> i & 1 ? Bf16::exp2(element * scale - log_sum[i % 4 / 2]) : 0.f;
    }
    if (args.drop_below > 0) {
      Block kept;
      dropout_by_query(kept, args, step.seed, step.place.pair, step.first(), tile * kBlockDim);
#pragma unroll
      for (int i = 0; i < 8; ++i) dp[i / 4][i % 4] *= kept[i / 4][i % 4];
    }
  };
  const auto add_dot = [&](const Block& p, const Block& dp) {
#pragma unroll
    for (int i = 0; i < 8; ++i) dot[i % 4 / 2] += p[i / 4][i % 4] * dp[i / 4][i % 4];
  };
  const auto finish_dot = [&] {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      dot[r] = quad_sum(dot[r]);
      by_weight += dot[r];
      dot[r] *= grad_factor;
      const int token = step.first() + row_of(2 * r);
      if (step.slice == 0 && lane_id() % 4 == 0 && token < args.length) {
        step.row_dots[token] = dot[r];
      }
    }
  };
  const auto add_gradient = [&](int tile, Block& p, const Block& dp) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      p[i / 4][i % 4] *= args.near_scale * (grad_factor * dp[i / 4][i % 4] - dot[i % 4 / 2]);
    }
    add_rows(dq, rounded(p), step.tiles.band_tile(0, tile) + step.channel(), G::kKeyStride);
  };
  if (end - begin <= kTilesAtOnce && (G::kPlain || !args.stages_tiles)) {
    Block p[kTilesAtOnce], dp[kTilesAtOnce];
#pragma unroll
    for (int t = 0; t < kTilesAtOnce; ++t) {
      if (begin + t < end) make(begin + t, p[t], dp[t]), add_dot(p[t], dp[t]);
    }
    finish_dot();
#pragma unroll
    for (int t = 0; t < kTilesAtOnce; ++t) {
      if (begin + t < end) add_gradient(begin + t, p[t], dp[t]);
    }
  } else {  // there are no registers to keep so many tiles in: they are made twice
    Block p, dp;
#pragma unroll 1
    for (int tile = begin; tile < end; ++tile) make(tile, p, dp), add_dot(p, dp);
    finish_dot();
#pragma unroll 1
    for (int tile = begin; tile < end; ++tile) make(tile, p, dp), add_gradient(tile, p, dp);
  }
  store_result(result, G::kKeyDim + kResultPad, dq);
  return by_weight;
}

/// key_result = the gradient with respect to k; value_result = sum_i p_ij dO_i, without the weight.
template <typename G>
__device__ __forceinline__ void near_key(const NearStep<G>& step, float* key_result,
                                         float* value_result) {
  const SweepArgs& args = step.args;
  const OwnRows<G> k(step.tiles.own_tile(0, step.tile), args),
      v(step.tiles.own_tile(1, step.tile), step.weight, args);
  const float value_factor = uniform_weight(step.weight, args);
  Block dk[G::kSliceBlocks], dv[G::kSliceBlocks];
  clear(dk), clear(dv);
  const float scale = args.near_scale * kLog2E;
  const uint32_t live_keys = step.tiles.live(step.tile);
  // Rows that are not live see nothing.
  const uint32_t rows =
      (live_keys >> row_of(0) & 1 ? 0x33u : 0u) | (live_keys >> row_of(2) & 1 ? 0xccu : 0u);
  const int begin = step.begin(), end = step.end();
#pragma unroll 1
  for (int tile = begin; tile < end; ++tile) {
    step.tiles.fetch(tile);
    const Elem *q_tile = step.tiles.band_tile(0, tile), *grad_tile = step.tiles.band_tile(1, tile);
    const uint32_t inside =
        step.band.template inside<G::kPlain>(step.tile, tile, step.tiles.live(tile)) & rows;
    const float* numbers = step.tiles.row_numbers(tile) + lane_id() % 4 * 2;
    Block p, dp;
    k.multiply_tile(p, q_tile);
    v.multiply_tile(dp, grad_tile);
    Block kept;
    const bool drops = args.drop_below > 0;
    if (drops)
      dropout_by_key(kept, args, step.seed, step.place.pair, step.first(), tile * kBlockDim);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 log_sum = *reinterpret_cast<const float2*>(numbers + n * 8);
      const float2 dot = *reinterpret_cast<const float2*>(numbers + kBlockDim + n * 8);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float probability =
            inside >> (n * 4 + i) & 1
                ? Bf16::exp2(p[n][i] * scale - (i % 2 ? log_sum.y : log_sum.x) * kLog2E)
                : 0.f;
        const float factor = drops ? kept[n][i] : 1.f;
        dp[n][i] = args.near_scale * probability *
                   (dp[n][i] * value_factor * factor - (i % 2 ? dot.y : dot.x));
        p[n][i] = probability * factor;
      }
    }
    add_rows(dv, rounded(p), grad_tile + step.channel(), G::kValueStride);
    add_rows(dk, rounded(dp), q_tile + step.channel(), G::kKeyStride);
  }
  store_result(value_result, G::kValueDim + kResultPad, dv);
  store_result(key_result, G::kKeyDim + kResultPad, dk);
}

}  // namespace fmmformer::cuda::roles
