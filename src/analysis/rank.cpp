// SPDX-License-Identifier: Apache-2.0
#include "analysis/rank.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace fmmformer::analysis {

at::Tensor without_band(const at::Tensor& matrix, int64_t bandwidth) {
  TORCH_CHECK_VALUE(matrix.dim() == 2 && matrix.size(0) == matrix.size(1), "rank: a matrix of ",
                    matrix.sizes(), "; wanted a square one");
  TORCH_CHECK_VALUE(bandwidth >= 0, "rank: bandwidth is ", bandwidth, "; allowed is 0 or more");
  if (bandwidth == 0) return matrix;
  return matrix.triu(bandwidth) + matrix.tril(-bandwidth);
}

std::vector<double> singular_values(const at::Tensor& matrix) {
  const at::Tensor values = at::linalg_svdvals(matrix.to(at::kCPU, at::kDouble)).contiguous();
  const double* begin = values.const_data_ptr<double>();
  return {begin, begin + values.numel()};
}

NumericalRank numerical_rank(std::span<const double> falling, double threshold) {
  const auto above = [&](double bound) {
    return std::ranges::count_if(falling, [&](double value) { return value > bound; });
  };
  if (falling.empty()) return {};
  return {.absolute = above(threshold), .relative = above(threshold * falling.front())};
}

int64_t rank_bound(int64_t length, int64_t bandwidth, bool causal) {
  const int64_t one_side = std::max<int64_t>(length - bandwidth, 0);
  return causal ? one_side : std::min(length, 2 * one_side);
}

void add_matrix(const at::Tensor& matrix, std::vector<BandRanks>& bands) {
  for (BandRanks& band : bands) {
    band.singular_values.push_back(singular_values(without_band(matrix, band.bandwidth)));
    band.ranks.push_back(numerical_rank(band.singular_values.back()));
  }
}

std::vector<double> typical_singular_values(const BandRanks& band) {
  std::vector<double> typical;
  for (size_t i = 0;; ++i) {
    std::vector<double> values;
    for (const auto& one : band.singular_values) {
      if (i < one.size()) values.push_back(one[i]);
    }
    if (values.empty()) return typical;
    const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    typical.push_back(*middle);
  }
}

}  // namespace fmmformer::analysis
