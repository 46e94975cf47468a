// SPDX-License-Identifier: Apache-2.0
// The near field: softmax inside the band, sixteen rows a warp, over tiles of sixteen tokens of the
// other side.
#pragma once

#include "attention/fmm/cuda/dropout.cuh"
#include "attention/fmm/cuda/products.cuh"

namespace fmmformer::cuda {

/// The other side of the band as pairs of tiles: keys and values, or queries and their gradients.
/// Tiles near the chunk lie in shared memory already; a band that reaches further fetches them one
/// by one into the warp's own place.
template <typename G>
struct BandTiles {
  using Elem = typename G::Elem;
  const Elem *first, *second;  // [.., kKeyStride], [.., kValueStride], from token `origin` on
  int origin;
  int rows;
  Elem* stage;  // of this warp: 16 rows of both
  const View &first_view, &second_view;

  __device__ __forceinline__ void at(int token, const SweepArgs& args, const Place<G>& place,
                                     const Elem*& one, const Elem*& two) const {
    if (!args.stages_tiles || (token >= origin && token < origin + rows)) {
      const int row = token - origin;
      one = first + row * G::kKeyStride, two = second + row * G::kValueStride;
      return;
    }
    __syncwarp();
    load_rows<G, G::kKeyDim, kWarpSize>(stage, first_view, args.head_dim, args, place, token, 16,
                                        lane_id());
    load_rows<G, G::kValueDim, kWarpSize>(stage + 16 * G::kKeyStride, second_view, args.value_dim,
                                          args, place, token, 16, lane_id());
    wait_for_copies();
    __syncwarp();
    one = stage, two = stage + 16 * G::kKeyStride;
  }
};

/// The tiles that sixteen rows from token `row` on can see, `before` back and `after` ahead:
/// `count` from `begin` on.
struct BandRange {
  int begin, count;
  __device__ BandRange(int row, int before, int after, int length) {
    const int first = row - before;
    begin = first <= 0 ? 0 : first / 16 * 16;
    count = (min(row + 16 + after, length) - begin + 15) / 16;
  }
};
constexpr int kTilesAtOnce =
    3;  // of the band whose scores stay in registers; a longer band takes them one by one

/// Which elements of a [16, 16] tile the band holds. For element i of column tile n the column's
/// token minus the row's is `shift` plus a constant: inside when `low <= .. < low + span`.
struct BandMask {
  int shift;  // of element 0, counted from the band's lower end
  unsigned span;
  uint32_t live;  // bit: the column is a live token
  int t;

  /// Columns from `column` on, rows from `row` on; columns may lie `before` below their row and
  /// `after` above it.
  template <typename G>
  __device__ BandMask(const SweepArgs& args, const Place<G>& place, int row, int column, int before,
                      int after)
      : t(place.t) {
    shift = column - row + before + 2 * place.t - place.g;
    span = static_cast<unsigned>(before + after);
    live = place.live_bits(args, column);
  }
  __device__ __forceinline__ bool inside(int n, int i) const {
    return static_cast<unsigned>(shift + n * 8 + i % 2 - i / 2 * 8) <= span &&
           (live >> (n * 8 + 2 * t + i % 2) & 1);
  }
};

/// softmax's running maximum (of scores times log2 e), sum and weighted values of sixteen rows.
template <typename G>
struct Softmax {
  float peak[2] = {-INFINITY, -INFINITY}, total[2] = {0.f, 0.f};
  ValueRows<G> sum;

  /// Raises the maximum to that of `s`, and returns what to subtract from scores: 0 for rows that
  /// saw nothing.
  template <int kTiles>
  __device__ __forceinline__ void raise(const float (&s)[kTiles][2][4], float (&base)[2]) {
    float highest[2] = {peak[0], peak[1]};
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        highest[i / 2 % 2] = fmaxf(highest[i / 2 % 2], s[tile][i / 4][i % 4]);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      peak[r] = quad_max(highest[r]);
      base[r] = peak[r] == -INFINITY ? 0.f : peak[r];
    }
  }
  /// Adds the tile of scores `s`, which turn into probabilities relative to `base`.
  __device__ __forceinline__ void add(float (&s)[2][4], const float (&base)[2],
                                      const SweepArgs& args, int pair, int query, int key,
                                      const typename G::Elem* values) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[n][i] = G::Math::exp2(s[n][i] - base[i / 2]);
        total[i / 2] += s[n][i];
      }
    }
    if (args.drop_below > 0) {
      float factor[2][4];
      dropout_by_query(factor, args, dropout_seed(args), pair, query, key);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[n][i] *= factor[n][i];
      }
    }
    add_product<G>(sum, s, values);
  }
};

/// out += weight * softmax(...) v; writes log_sum_exp.
template <typename G>
__device__ __forceinline__ void near_forward(const SweepArgs& args, const Place<G>& place,
                                             int chunk, const typename G::Elem* q_tile,
                                             const BandTiles<G>& keys, const float* weight,
                                             ValueRows<G>& out) {
  const int first = chunk + place.warp * 16;
  if (first >= args.length) return;
  typename G::Math::A q[G::kKeySteps];
  load_operands<G>(q, q_tile);
  Softmax<G> softmax;
  clear(softmax.sum);
  const float scale = args.near_scale * kLog2E;
  const BandRange range(first, args.left, args.right, args.length);
  const auto scores = [&](int key, const typename G::Elem* k_tile, float(&s)[2][4]) {
    const BandMask mask(args, place, first, key, args.left, args.right);
    multiply_rows<G>(s, q, k_tile);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = mask.inside(n, i) ? s[n][i] * scale : -INFINITY;
    }
  };
  const typename G::Elem *k_tile, *v_tile;
  float base[2];
  if (range.count <= kTilesAtOnce && !args.stages_tiles) {
    float s[kTilesAtOnce][2][4];
#pragma unroll
    for (int tile = 0; tile < kTilesAtOnce; ++tile) {
      if (tile < range.count) {
        keys.at(range.begin + tile * 16, args, place, k_tile, v_tile);
        scores(range.begin + tile * 16, k_tile, s[tile]);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) s[tile][i / 4][i % 4] = -INFINITY;
      }
    }
    softmax.raise(s, base);
#pragma unroll
    for (int tile = 0; tile < kTilesAtOnce; ++tile) {
      if (tile >= range.count) break;
      keys.at(range.begin + tile * 16, args, place, k_tile, v_tile);
      softmax.add(s[tile], base, args, place.pair, first, range.begin + tile * 16, v_tile);
    }
  } else {
    for (int tile = 0; tile < range.count; ++tile) {
      const int key = range.begin + tile * 16;
      keys.at(key, args, place, k_tile, v_tile);
      float s[1][2][4];
      scores(key, k_tile, s[0]);
      const float before[2] = {softmax.peak[0], softmax.peak[1]};
      softmax.raise(s, base);
      const float shrink[2] = {G::Math::exp2(before[0] - base[0]),
                               G::Math::exp2(before[1] - base[1])};
      softmax.total[0] *= shrink[0], softmax.total[1] *= shrink[1];
#pragma unroll
      for (int n = 0; n < G::kValueTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) softmax.sum[n][i] *= shrink[i / 2];
      }
      softmax.add(s[0], base, args, place.pair, first, key, v_tile);
    }
  }
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float total = quad_sum(softmax.total[r]);
    const int token = chunk + place.row(2 * r);
    if (place.t == 0 && token < args.length) {
      // Infinity for rows that saw nothing or are dead: every later exp(score - log_sum_exp) is
      // then 0.
      const bool live = place.live(args, token) && total > 0.f;
      args.log_sum_exp[place.row_index(args, token)] =
          live ? (softmax.peak[r] + log2f(total)) / kLog2E : INFINITY;
    }
    factor[r] = total > 0.f ? 1.f / total : 0.f;
  }
  add_weighted<G>(out, softmax.sum, factor, weight, args);
}

/// dq += the near field's part; writes its row dots, sum_j p_ij dp_ij.
template <typename G>
__device__ __forceinline__ void near_query(const SweepArgs& args, const Place<G>& place, int chunk,
                                           const typename G::Elem* q_tile,
                                           const typename G::Elem* grad_tile,
                                           const BandTiles<G>& keys, const float* weight,
                                           float* weight_sum, KeyRows<G>& dq) {
  const int first = chunk + place.warp * 16;
  if (first >= args.length) return;
  typename G::Math::A q[G::kKeySteps], grad[G::kValueSteps];
  load_operands<G>(q, q_tile);
  const float grad_factor = load_weighted<G>(grad, grad_tile, weight, args);
  const float scale = args.near_scale * kLog2E;
  float log_sum[2], dot[2] = {0.f, 0.f};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int token = chunk + place.row(2 * r);
    log_sum[r] =
        token < args.length ? args.log_sum_exp[place.row_index(args, token)] * kLog2E : INFINITY;
  }
  const BandRange range(first, args.left, args.right, args.length);
  // p and dp of one tile: the softmax's gradient needs the sum over all tiles before any of them
  // can be used.
  const auto make = [&](int key, float(&p)[2][4], float(&dp)[2][4],
                        const typename G::Elem*& k_tile) {
    const typename G::Elem* v_tile;
    keys.at(key, args, place, k_tile, v_tile);
    const BandMask mask(args, place, first, key, args.left, args.right);
    multiply_rows<G>(p, q, k_tile);
    multiply_rows<G>(dp, grad, v_tile);
    float kept[2][4];
    if (args.drop_below > 0)
      dropout_by_query(kept, args, dropout_seed(args), place.pair, first, key);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        p[n][i] = mask.inside(n, i) ? G::Math::exp2(p[n][i] * scale - log_sum[i / 2]) : 0.f;
        if (args.drop_below > 0) dp[n][i] *= kept[n][i];
      }
    }
  };
  const auto add_dot = [&](const float(&p)[2][4], const float(&dp)[2][4]) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) dot[i / 2] += p[n][i] * dp[n][i];
    }
  };
  const auto finish_dot = [&] {
#pragma unroll
    for (int r = 0; r < 2; ++r) dot[r] = quad_sum(dot[r]);
    if (weight_sum) add_row_sums(weight_sum, dot[0] + dot[1]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      dot[r] *= grad_factor;
      const int token = chunk + place.row(2 * r);
      if (place.t == 0 && token < args.length) {
        args.row_dots[place.row_index(args, args.all_maps + 1, args.all_maps, token)] = dot[r];
      }
    }
  };
  const auto add_gradient = [&](float(&p)[2][4], const float(&dp)[2][4],
                                const typename G::Elem* k_tile) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        p[n][i] *= args.near_scale * (grad_factor * dp[n][i] - dot[i / 2]);
    }
    add_product<G>(dq, p, k_tile);
  };
  const typename G::Elem* k_tile;
  // Wide heads have no registers left to keep the tiles in: theirs are made twice.
  if (G::kKeyDim <= 32 && range.count <= kTilesAtOnce && !args.stages_tiles) {
    float p[kTilesAtOnce][2][4], dp[kTilesAtOnce][2][4];
#pragma unroll
    for (int tile = 0; tile < kTilesAtOnce; ++tile) {
      if (tile >= range.count) break;
      make(range.begin + tile * 16, p[tile], dp[tile], k_tile);
      add_dot(p[tile], dp[tile]);
    }
    finish_dot();
#pragma unroll
    for (int tile = 0; tile < kTilesAtOnce; ++tile) {
      if (tile >= range.count) break;
      const typename G::Elem* v_tile;
      keys.at(range.begin + tile * 16, args, place, k_tile, v_tile);
      add_gradient(p[tile], dp[tile], k_tile);
    }
    return;
  }
  float p[2][4], dp[2][4];
  for (int tile = 0; tile < range.count; ++tile) {
    make(range.begin + tile * 16, p, dp, k_tile);
    add_dot(p, dp);
  }
  finish_dot();
  for (int tile = 0; tile < range.count; ++tile) {
    make(range.begin + tile * 16, p, dp, k_tile);
    add_gradient(p, dp, k_tile);
  }
}

/// dk += the near field's part; dv_near = sum_i p_ij dO_i, without the weight.
template <typename G>
__device__ __forceinline__ void near_key(const SweepArgs& args, const Place<G>& place, int chunk,
                                         const typename G::Elem* k_tile,
                                         const typename G::Elem* v_tile,
                                         const BandTiles<G>& queries, const float* weight,
                                         KeyRows<G>& dk, ValueRows<G>& dv_near) {
  clear(dv_near);
  const int first = chunk + place.warp * 16;
  if (first >= args.length) return;
  typename G::Math::A k[G::kKeySteps], v[G::kValueSteps];
  load_operands<G>(k, k_tile);
  const float value_factor = load_weighted<G>(v, v_tile, weight, args);
  const float scale = args.near_scale * kLog2E;
  const uint32_t live_rows = place.live_bits(args, first);
  const bool live[2] = {(live_rows >> place.g & 1) != 0, (live_rows >> (place.g + 8) & 1) != 0};
  const float* log_sums = args.log_sum_exp + place.row_index(args, 0);
  const float* dots = args.row_dots + place.row_index(args, args.all_maps + 1, args.all_maps, 0);
  const BandRange range(first, args.right, args.left, args.length);
#pragma unroll 1
  for (int tile = 0; tile < range.count; ++tile) {
    const int query = range.begin + tile * 16;
    const typename G::Elem *q_tile, *grad_tile;
    queries.at(query, args, place, q_tile, grad_tile);
    const BandMask mask(args, place, first, query, args.right, args.left);
    float log_sum[2][2], dot[2][2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int i = query + place.column(n, c);
        log_sum[n][c] = i < args.length ? log_sums[i] * kLog2E : INFINITY;
        dot[n][c] = i < args.length ? dots[i] : 0.f;
      }
    }
    float p[2][4], dp[2][4], kept[2][4];
    multiply_rows<G>(p, k, q_tile);
    multiply_rows<G>(dp, v, grad_tile);
    if (args.drop_below > 0)
      dropout_by_key(kept, args, dropout_seed(args), place.pair, first, query);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool seen = mask.inside(n, i) && live[i / 2];
        p[n][i] = seen ? G::Math::exp2(p[n][i] * scale - log_sum[n][i % 2]) : 0.f;
        const float factor = args.drop_below > 0 ? kept[n][i] : 1.f;
        dp[n][i] = args.near_scale * p[n][i] * (dp[n][i] * value_factor * factor - dot[n][i % 2]);
        p[n][i] *= factor;
      }
    }
    add_product<G>(dv_near, p, grad_tile);
    add_product<G>(dk, dp, q_tile);
  }
}

}  // namespace fmmformer::cuda
