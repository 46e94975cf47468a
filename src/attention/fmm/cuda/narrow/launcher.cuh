// SPDX-License-Identifier: Apache-2.0
// Launches of the sweeps whose thread blocks walk a whole head of 32 channels in chunks of 64
// tokens, with products of a warpgroup: GPUs of compute capability 9.0 alone.
#pragma once

#include "attention/fmm/cuda/sweep.h"

namespace fmmformer::cuda::narrow {

constexpr int kDim = 32;                  // channels of a head
constexpr int kRows = 64;                 // tokens of a chunk
constexpr int kLongest = 2048;            // sequence
constexpr int kFarthest = 32;             // key before a query that its band may see
constexpr int kBlocksAtOnce = 4;          // of a multiprocessor
constexpr int kSharedBytes = 57344;       // that each of those may have
constexpr int kSharedBegin = 1024;        // where it begins: what is before is the GPU's own
constexpr int kGradientBlocksAtOnce = 2;  // of gradient_sweep
constexpr int kBothSidesBytes = 115712;   // of shared memory for each of those
constexpr int kMostDropped = 0x7c00;      // of fifteen bits: see Band::at_least
constexpr float kLeastFarScale = 1e-20f;  // norms are told by far_scale / norm
constexpr int kFewestPairs = 256;         // below, strips of a sequence fill the GPU better

/// What forward keeps of a chunk for gradient_sweep, in this order: the state before it, bf16
/// [maps][40][32] as a warpgroup's operand, key sums among its rows (ForwardState::show); far_scale
/// / norm of the chunk's rows, float [maps][64], and their log_sum_exp for powers of 2, float [64],
/// 0 and infinity for dead ones; dropout's bits, a word for each lane of four tiles.
struct Entry {
  static constexpr int kStateBytes = (kDim + 8) * kDim * 2, kRowBytes = kRows * 4, kBitBytes = 512;
  static constexpr int factors(int maps) { return maps * kStateBytes; }
  static constexpr int log_sums(int maps) { return factors(maps) + maps * kRowBytes; }
  static constexpr int bits(int maps) { return log_sums(maps) + kRowBytes; }
  static constexpr int bytes(int maps) { return bits(maps) + kBitBytes; }
  static constexpr int number_bytes(int maps) { return bytes(maps) - factors(maps); }
};

struct Launcher {
  /// There are no segments, so there is nothing to sum.
  static cudaError_t sum_states(const SweepArgs&, bool, cudaStream_t) { return cudaSuccess; }
  static cudaError_t forward_sweep(const SweepArgs& args, cudaStream_t stream);
  static cudaError_t query_sweep(const SweepArgs& args, cudaStream_t stream);
  static cudaError_t key_sweep(const SweepArgs& args, cudaStream_t stream);
  /// Both of these at once, from chunk_states.
  static cudaError_t gradient_sweep(const SweepArgs& args, cudaStream_t stream);
  /// How many of its thread blocks a head has: all heads' run at a time. Block i walks batch
  /// entries i, i + blocks, .., and leaves their weights' sums in row i. Where tokens are masked,
  /// one for each batch entry.
  static int64_t gradient_blocks(const SweepArgs& args) {
    const int64_t at_once = kGradientBlocksAtOnce * kMultiprocessors / max(args.heads, 1);
    return args.token_mask || at_once == 0 || args.batch < at_once ? args.batch : at_once;
  }
};

/// What a pass carries, as PassShape says it of the other kernels.
struct PassShape {
  static constexpr int kValueDim = kDim, kChunk = kRows;
  static constexpr int maps(int) { return kMapsAtOnce; }
  static constexpr int blocks(int, int, bool) { return 1; }  // sequences are never cut
};

}  // namespace fmmformer::cuda::narrow
