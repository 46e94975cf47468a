// SPDX-License-Identifier: Apache-2.0
#include "analysis/band_energy.h"

#include <ATen/ATen.h>

namespace fmmformer::analysis {
namespace {

/// The sum over |i - j| = d for every d from 0 to N - 1, added up from d = 0 on.
std::vector<double> cumulative_over_diagonals(const at::Tensor& matrix) {
  const int64_t length = matrix.size(0);
  const at::Tensor place = at::arange(length);
  const at::Tensor distance = (place.unsqueeze(1) - place.unsqueeze(0)).abs().flatten();
  const at::Tensor sums =
      at::zeros({length}, at::kDouble).index_add_(0, distance, matrix.flatten()).cumsum(0);
  const double* begin = sums.const_data_ptr<double>();
  return {begin, begin + length};
}

double share_below(const std::vector<double>& cumulative, int64_t bandwidth) {
  if (bandwidth <= 0 || cumulative.back() == 0) return 0;
  const auto last = std::min<int64_t>(bandwidth, std::ssize(cumulative)) - 1;
  return cumulative[static_cast<size_t>(last)] / cumulative.back();
}

}  // namespace

std::vector<BandShare> band_shares(const at::Tensor& matrix, std::span<const int64_t> bandwidths) {
  TORCH_CHECK_VALUE(matrix.dim() == 2 && matrix.size(0) == matrix.size(1) && matrix.size(0) > 0,
                    "band energy: a matrix of ", matrix.sizes(), "; wanted a square one");
  const at::Tensor plain = matrix.to(at::kCPU, at::kDouble);
  const auto mass = cumulative_over_diagonals(plain.abs());
  const auto energy = cumulative_over_diagonals(plain.square());
  std::vector<BandShare> shares;
  for (const int64_t bandwidth : bandwidths) {
    shares.push_back({share_below(mass, bandwidth), share_below(energy, bandwidth)});
  }
  return shares;
}

std::vector<int64_t> usual_bandwidths(int64_t length) {
  std::vector<int64_t> widths;
  for (const int64_t width : {1, 2, 3}) {
    if (width < length) widths.push_back(width);
  }
  for (int64_t decade = 1; 5 * decade < length; decade *= 10) {
    for (const int64_t step : {5, 10, 20, 30}) {
      if (step * decade < length) widths.push_back(step * decade);
    }
  }
  widths.push_back(length);
  return widths;
}

}  // namespace fmmformer::analysis
