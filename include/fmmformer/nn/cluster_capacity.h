// SPDX-License-Identifier: Apache-2.0
// How many rows the clusters of an adaptive softmax are given on a GPU; without torch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fmmformer {

/// What a cluster of `members` targets among `tokens` is given: rounded up to 4, 5, 6 or 7 times a
/// power of two, 128 at least, and never more than all tokens. A function of the batch alone: a run
/// that is cut and resumed gives the same rows to the same batch. Coarse, since every combination
/// costs a captured graph; fine enough to waste an eighth on average. (Of WikiText-2's training
/// batches of 24,576 targets 518 to 689 lie beyond word 20,000: they get 640 or 768 rows.)
int64_t cluster_capacity(int64_t members, int64_t tokens);

/// The capacities of a batch's targets: one for each cluster [cutoff_i, cutoff_{i+1}), the last
/// without end. None without cutoffs.
std::vector<int64_t> cluster_capacities(std::span<const int64_t> targets,
                                        std::span<const int64_t> cutoffs);

}  // namespace fmmformer
