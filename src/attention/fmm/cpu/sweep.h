// SPDX-License-Identifier: Apache-2.0
// The sweeps: the whole arithmetic of FMM attention on the CPU, as plain functions over memory. No
// torch here.
//
// A sweep walks one (batch entry, head) in chunks of kChunk tokens. Far field: the r feature maps
// of a token are laid side by side into one feature row of width R = r * padded D, so that r far
// fields are one linear attention of feature dimension R. With F the feature rows, and the query
// rows scaled by weight * far_scale / norm:
// clang-format off
//
//   forward   out_i = sum_{j <= i, in the chunk} <Fq_i, Fk_j> v_j  +  Fq_i S
//             S     = sum_{j before the chunk} Fk_j v_j^T
//   backward  U_i   = sum_{j <= i} <dO_i, v_j> Fk_j             query sweep, forwards, S transposed
//             dot_i = <Fq_i, U_i> / norm_i = <dO_i, far_i>      what the normaliser's gradient needs
//             dFk_j = sum_{i >= j} (<dO_i, v_j> - dot_i) Fq_i   key sweep, backwards
//             dv_j  = sum_{i >= j} <Fq_i, Fk_j> dO_i            with G = sum_i Fq_i dO_i^T
// clang-format on
//
// Two-sided, S and G are sums over everything and the parts inside a chunk vanish. A task with a
// whole causal sequence goes back once instead: backward_sweep. docs/math.md derives all of it.
#pragma once

#include <cstdint>

#include "attention/cpu/arena.h"
#include "attention/cpu/tile.h"

namespace fmmformer::cpu {

/// One call of the operator. `Real` is what sums are kept in: double for fp64 tensors, else float.
template <typename Real>
struct SweepArgs : FeatureLayout {
  Element element;
  int64_t batch, length, heads, value_dim;
  View q, k, v, out, grad_out, dq, dk, dv;
  const bool* token_mask = nullptr;  // [batch, length] contiguous, or none

  bool has_near = false;
  int64_t left = 0, right = 0;
  Real near_scale = 1;
  double near_dropout = 0;
  uint64_t dropout_seed = 0;

  bool causal = false;
  Normaliser normaliser = Normaliser::kRowSum;
  Real eps = 0;
  Real far_scale = 1;

  bool uniform_weights = true;        // equal for all channels of a head
  const Real* near_weight = nullptr;  // [heads, value_dim]
  const Real* far_weight = nullptr;   // [maps, heads, value_dim]

  Real* log_sum_exp = nullptr;  // [batch, heads, length]
  Real* normalisers = nullptr;  // [batch, heads, maps, length]; none unless row sums
  Real* row_dots = nullptr;     // [batch, heads, maps, length]: <dO, far_l>; backward only
  View near_dk, near_dv;  // of Real: the near field's part of dk and dv (dv without the weight), on
                          // its way from the query sweep to the key sweep; may be dk and dv
};

/// A sum over tokens of (feature row) x (value row), with the sum of the feature rows: S and z
/// above, or G and its counterpart. [R, padded Dv] and [R], both zeroed or filled by the caller.
template <typename Real>
struct FarState {
  Real* sums = nullptr;
  Real* key_sums = nullptr;
};
template <typename Real>
int64_t far_state_size(const SweepArgs<Real>& args) {  // of sums and key_sums together
  return feature_width(args) * (padded(args.value_dim) + 1);
}

/// Columns of the near field held at a time: two tiles of them and their transposes fit L2.
inline constexpr int64_t kNearBlock = 128;

/// Tokens that meet one by one; all others meet through the state. A short step saves products
/// among the tokens and costs traffic to the state, which is cheap while that is in the first-level
/// cache.
template <typename Real>
int64_t far_step_length(const SweepArgs<Real>& args) {
  constexpr int64_t kSmallState = int64_t{16} << 10;
  const int64_t state = feature_width(args) * padded(args.value_dim) * int64_t{sizeof(Real)};
  return args.causal && state <= kSmallState ? kVectorPad : kChunk;
}

/// Whether backward_sweep serves a task that has a whole sequence. Longer ones would keep too many
/// states, wider bands need more than one block.
template <typename Real>
bool fits_backward_sweep(const SweepArgs<Real>& args) {
  constexpr int64_t kMostBytes = int64_t{4} << 20;
  const int64_t steps = round_up(args.length, kChunk) / far_step_length(args);
  const bool one_block = !args.has_near || args.left + kChunk <= kNearBlock;
  return args.causal && args.maps > 0 && one_block &&
         steps * far_state_size(args) * int64_t{sizeof(Real)} <= kMostBytes;
}

/// Adds the keys of a segment to `state`.
void sum_keys(const SweepArgs<float>& args, const Segment& segment, Arena& arena,
              FarState<float> state);
void sum_keys(const SweepArgs<double>& args, const Segment& segment, Arena& arena,
              FarState<double> state);

/// Writes out, log_sum_exp and normalisers. `state`: causal, the keys before the segment, and on
/// return those after it too; two-sided, all keys.
void forward_sweep(const SweepArgs<float>& args, const Segment& segment, Arena& arena,
                   FarState<float> state);
void forward_sweep(const SweepArgs<double>& args, const Segment& segment, Arena& arena,
                   FarState<double> state);

/// Writes dq, row_dots, near_dk and near_dv. `state` as in forward_sweep. Where `query_sums` is
/// given, adds the segment's part of G. Adds the gradients of the weights to weight_sums [maps + 1]
/// (by map, then near) where these are uniform.
void query_sweep(const SweepArgs<float>& args, const Segment& segment, Arena& arena,
                 FarState<float> state, FarState<float> query_sums, double* weight_sums);
void query_sweep(const SweepArgs<double>& args, const Segment& segment, Arena& arena,
                 FarState<double> state, FarState<double> query_sums, double* weight_sums);

/// Writes dk and dv. `query_sums`: causal, G of the queries after the segment (on return also the
/// segment's); two-sided, of all queries. Adds the gradients of per-channel weights to weight_sums
/// [maps + 1, padded Dv].
void key_sweep(const SweepArgs<float>& args, const Segment& segment, Arena& arena,
               FarState<float> query_sums, double* weight_sums);
void key_sweep(const SweepArgs<double>& args, const Segment& segment, Arena& arena,
               FarState<double> query_sums, double* weight_sums);

/// Both sides in one walk from the end of a whole causal sequence, which keeps the state before
/// every step on a first walk over the keys: the queries' features and (uniform weights) <dO_i,
/// v_j> are made once for dq, dk and dv. Writes these three; `query_sums` is zeros. Adds the
/// gradients of uniform weights to weight_sums, of others to channel_sums.
void backward_sweep(const SweepArgs<float>& args, const Segment& segment, Arena& arena,
                    FarState<float> query_sums, double* weight_sums, double* channel_sums);
void backward_sweep(const SweepArgs<double>& args, const Segment& segment, Arena& arena,
                    FarState<double> query_sums, double* weight_sums, double* channel_sums);

}  // namespace fmmformer::cpu
