// SPDX-License-Identifier: Apache-2.0
// How many numbers an attention matrix is made of once its band is gone: the paper's case for a
// near field beside a far field of low rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace fmmformer::analysis {

inline constexpr double kRankThreshold = 1e-6;  // of singular values, in fp64

/// A [N, N] without its entries |i - j| < bandwidth; 0 removes nothing.
at::Tensor without_band(const at::Tensor& matrix, int64_t bandwidth);

/// In fp64, falling.
std::vector<double> singular_values(const at::Tensor& matrix);

/// How many singular values count. The paper says both: above 1e-6, and above 1e-6 of the largest.
struct NumericalRank {
  int64_t absolute = 0;
  int64_t relative = 0;
};
NumericalRank numerical_rank(std::span<const double> falling, double threshold = kRankThreshold);

/// What the rank of a matrix of N tokens without its band cannot exceed, whatever it holds, because
/// of the rows that are left with nothing: N - k of a causal matrix, min(N, 2 (N - k)) of a
/// two-sided one. A rank says something only where it is well below.
int64_t rank_bound(int64_t length, int64_t bandwidth, bool causal);

/// The ranks of many matrices without a band, and what their singular values look like.
struct BandRanks {
  int64_t bandwidth = 0;
  std::vector<NumericalRank> ranks;                  // of each matrix
  std::vector<std::vector<double>> singular_values;  // of each matrix
};

/// Adds a matrix to all bands.
void add_matrix(const at::Tensor& matrix, std::vector<BandRanks>& bands);

/// The i-th largest singular value, in the middle of all matrices (a median), for every i. Matrices
/// that are too small to have an i-th do not count for it.
std::vector<double> typical_singular_values(const BandRanks& band);

}  // namespace fmmformer::analysis
