// SPDX-License-Identifier: Apache-2.0
// The sweeps: the whole arithmetic of fast-weight attention on the CPU, as plain functions over
// memory. No torch here.
//
// A sweep walks one (batch entry, head) in chunks of kChunk tokens. With X, Y the feature rows of a
// chunk's keys and queries (the latter scaled by far_scale / norm), W the state before it, and
// `write`, `erase` the two gates of a token (both beta, unless the key is normalised):
// clang-format off
//
//   forward   P   = X W + strictly lower(X X^T) U      what each key reads, with the chunk's own writes
//             U   = write V - erase P                  what it writes: row after row, a triangular solve
//             out = Y W + lower(Y X^T) U
//             W  += X^T U
//   backward  dU  = lower(Y X^T)^T dO + X G            G: gradient of the state after the chunk
//             dR  = dU + strictly lower(X X^T)^T E     E = -erase dR: row after row, from the last
//             dV  = write dR
//             dY  = dO W^T + lower(dO U^T) X
//             dX  = E W^T + U G^T + lower(dO U^T)^T Y + (strictly lower(E U^T) + its transpose) X
//             G  += Y^T dO + X^T E
// clang-format on
//
// docs/math.md derives all of it.
#pragma once

#include <cstdint>

#include "attention/cpu/arena.h"
#include "attention/cpu/tile.h"
#include "fmmformer/attention/fast_weight_options.h"

namespace fmmformer::fast_weight {

using cpu::Arena, cpu::Element, cpu::FeatureLayout, cpu::kChunk, cpu::padded, cpu::round_up,
    cpu::Segment, cpu::View;

/// Forward keeps its state every so many tokens. Backward makes the states in between again, a
/// segment of this length at a time: at D = 64 what it then holds still fits a second-level cache.
inline constexpr int64_t kSegment = 512;
static_assert(kSegment % kChunk == 0);

/// One call of the operator. `Real` is what sums are kept in: double for fp64 tensors, else float.
template <typename Real>
struct SweepArgs : FeatureLayout {
  Element element;
  int64_t batch, length, heads, value_dim;
  View q, k, v, out, grad_out, dq, dk, dv;
  const Real* beta = nullptr;        // [batch, heads, length]
  Real* dbeta = nullptr;             // likewise
  const bool* token_mask = nullptr;  // [batch, length] contiguous, or none
  FastWeightNormaliser normaliser = FastWeightNormaliser::kOutput;
  Real eps = 0;
  Real far_scale = 1;
};

/// W and z, or their gradients: [padded D, padded Dv] and [padded D].
template <typename Real>
struct State {
  Real* memory = nullptr;
  Real* key_sums = nullptr;
};
template <typename Real>
int64_t state_size(const SweepArgs<Real>& args) {  // of both together
  return padded(args.head_dim) * (padded(args.value_dim) + 1);
}

/// Writes out. `state`: before the segment, and on return after it.
void forward_sweep(const SweepArgs<float>& args, const Segment& segment, Arena& arena,
                   State<float> state);
void forward_sweep(const SweepArgs<double>& args, const Segment& segment, Arena& arena,
                   State<double> state);

/// Writes dq, dk, dv and dbeta. `state`: before the segment, on return after it. `gradient`: that
/// of the state after the segment, on return that of the state before it.
void backward_sweep(const SweepArgs<float>& args, const Segment& segment, Arena& arena,
                    State<float> state, State<float> gradient);
void backward_sweep(const SweepArgs<double>& args, const Segment& segment, Arena& arena,
                    State<double> state, State<double> gradient);

}  // namespace fmmformer::fast_weight
