// SPDX-License-Identifier: Apache-2.0
// Heads with fewer channels than their kernels have room for (chunks/, chunks_fp32/, warpgroups/).
//
// The channels beyond are zeros in shared memory: of raw rows, and of one side's features in every
// product over feature channels, since features of 0 are not 0. In most sweeps that side is the
// rows that all warps see, and states have zeros there, too; in chunks/both_sides it is the keys',
// so that what is summed of queries has numbers there that only zeros meet. Results have numbers
// there that nobody writes to memory. Where powers of two are chosen by the largest feature
// (chunks_fp32), these channels do not count. States in memory have all channels that there is room
// for, but for the one that decoding is given.
#pragma once

#include <type_traits>

#include "attention/fmm/cuda/sweep.h"

namespace fmmformer::cuda {

/// Pieces of sixteen bytes are copied whole, and in products' results eight channels belong
/// together: head_dim is a multiple of this.
constexpr int kChannelsAtOnce = 8;

/// Calls body(std::bool_constant): whether heads have all of kDim channels, G::kFull of a shape.
template <int kDim, typename Body>
cudaError_t with_fullness(const SweepArgs& args, const Body& body) {
  return args.head_dim == kDim ? body(std::true_type()) : body(std::false_type());
}

/// How many channels heads of head_dim have, and whether they have a certain one: known at compile
/// time where they have all that there is room for.
template <typename G>
__device__ __forceinline__ int channels(int head_dim) {
  return G::kFull ? G::kDim : head_dim;
}
template <typename G>
__device__ __forceinline__ bool has_channel(int head_dim, int channel) {
  return G::kFull || channel < head_dim;
}

}  // namespace fmmformer::cuda
