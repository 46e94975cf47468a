// SPDX-License-Identifier: Apache-2.0
// The sweeps of fast-weight attention on the GPU, as launches over plain memory. No torch here.
//
// The arithmetic is that of cpu/sweep.h with chunks of sixteen tokens, the height of a tensor-core
// tile. A thread block owns a segment of one (batch entry, head) and takes one to four chunks at a
// time: first a team of warps for each makes all that needs no state, the triangular solves among
// it; then the warps share the state, sixteen rows each, and walk through the chunks. With M = I +
// erase L, L the strictly lower triangle of X X^T, A the lower one of Y X^T, dO scaled by far_scale
// / norm:
// clang-format off
//
//   before the state   Uv = M^-1 (write V)    Wx = M^-1 (erase X)    Rv = M^-T A^T dO    Rx = M^-T X
//   forwards           U  = Uv - Wx W         out = (Y W + A U) far_scale / norm         W += X^T U
//   backwards          dR = Rv + Rx G         E = -erase dR                              G += Y^T dO + X^T E
//
// clang-format on
// A segment's state is an affine map of the one before: W_after = T W_before + B. Where a sequence
// is cut into segments, a first pass makes T and B of each (the same walk, from the identity and
// from zero), and join_states makes the states in between. Rows of the state are independent of
// each other as long as they are rows of W^T, which is how the walks above hold it; gradients of
// queries and keys need rows of W, and are made by walks of their own.
#pragma once

#include "attention/fmm/cuda/sweep.h"
#include "fmmformer/attention/fast_weight_options.h"

namespace fmmformer::cuda::fast_weight {

inline constexpr int kChunk = 16;
inline constexpr int kSegmentChunks = 32;  // 512 tokens: where forward keeps a state for backward

/// A matrix and a vector for each pair of batch entry and head and each segment: [pairs, segments,
/// D, Dv] and [pairs, segments, D].
struct States {
  float* memories = nullptr;
  float* sums = nullptr;
};

struct SweepArgs {
  Element element = Element::kFloat32;
  bool precise = true;  // fp32's precision; else products of tf32 operands
  int64_t batch = 0;
  int length = 0, heads = 0, head_dim = 0, value_dim = 0;
  View q, k, v, out, grad_out, dq, dk, dv;
  Weight beta;                       // by batch entry, head and token
  void* dbeta = nullptr;             // [batch, length, heads], of beta's type
  const bool* token_mask = nullptr;  // [batch, length] contiguous, or none
  bool all_live = false;             // no mask, and whole chunks: nobody has to ask

  FeatureMap feature_map = FeatureMap::kElu;
  bool unit_features = false;
  FastWeightNormaliser normaliser = FastWeightNormaliser::kOutput;
  float eps = 0, far_scale = 1;

  int segments = 1, segment_chunks = 0;  // how a sequence is cut among thread blocks
  int kept_states = 1;                   // of a pair: one every kSegmentChunks, and after the last
  bool keeps_states = false;             // whether the forward sweep writes them
  States states;                         // W and the key sums, each after its segment
  // Of G and of the key sums' gradient, each before its segment. Backward only.
  States gradients;
  float* transitions = nullptr;  // T^T of every segment: [pairs, segments, D, D]

  // What backward's kernels leave for each other, by chunk: [pairs, chunks, Dv (by 16), 16]. For
  // narrow heads forward leaves what write_sweep would, and the memories.
  float *written = nullptr, *solved = nullptr;  // U^T and dR^T
  float* key_gradients = nullptr;               // [pairs, chunks, 16, D (by 16)]
  float* rows = nullptr;                        // [pairs, kKeptFields, chunks, 16]
  float* row_gradients = nullptr;               // [pairs, the other fields, chunks, 16]
  float* sums_before = nullptr;                 // of keys: [pairs, chunks, D (by 16)]
  float* memories_before = nullptr;             // W^T, narrow heads alone: [pairs, chunks, 16, 16]
};

/// Numbers of a row: what its query is divided by, its two gates, <x, key sums before it>, and the
/// gradients of the first and the last.
enum RowField {
  kNorm,
  kWrite,
  kErase,
  kOverlap,
  kKeptFields,  // these are forward's
  kNormGradient = kKeptFields,
  kOverlapGradient,
  kRowFields
};

/// Bytes of shared memory that a thread block must be allowed to have, for heads of this size.
int shared_bytes(int head_dim, int value_dim);

/// states.sums: the sum of each segment's keys.
cudaError_t sum_keys(const SweepArgs& args, cudaStream_t stream);
/// [pairs, segments, D] becomes its running sums, from the first segment or from the last.
cudaError_t accumulate(const SweepArgs& args, float* sums, bool from_the_last, cudaStream_t stream);
/// Each segment's T, and B in place of its state; or the same of the gradients.
cudaError_t transition_sweep(const SweepArgs& args, bool of_gradients, cudaStream_t stream);
/// State s becomes T_s times the one before it, plus B_s; or, of gradients, the one after it.
cudaError_t join_states(const SweepArgs& args, bool of_gradients, cudaStream_t stream);
/// Writes out; with keeps_states also the states, with memories_before also all that a walk leaves.
cudaError_t forward_sweep(const SweepArgs& args, cudaStream_t stream);

/// Backward, from the states. The first writes `written`, `sums_before` and the rows;
cudaError_t write_sweep(const SweepArgs& args, cudaStream_t stream);
/// the second, from the gradients where there are several segments, `solved`;
cudaError_t solve_sweep(const SweepArgs& args, cudaStream_t stream);
/// the third dq, dv, dbeta, and for the fourth `key_gradients`, two more numbers a row and each
/// segment's part of gradients.sums;
cudaError_t query_sweep(const SweepArgs& args, cudaStream_t stream);
/// the fourth dk.
cudaError_t key_sweep(const SweepArgs& args, cudaStream_t stream);

/// Whether one kernel can do the rest of backward: one segment of narrow heads.
bool is_short(const SweepArgs& args);
/// ... from what forward left.
cudaError_t short_backward(const SweepArgs& args, cudaStream_t stream);

}  // namespace fmmformer::cuda::fast_weight
