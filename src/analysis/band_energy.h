// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace fmmformer::analysis {

/// How much of a matrix A lies in the band |i - j| < bandwidth.
struct BandShare {
  double mass = 0;    // sum over the band of |a_ij|, of the sum over all
  double energy = 0;  // the same of a_ij^2: what of the squared Frobenius norm a band explains
};

/// One entry a bandwidth, in the order given; a matrix of zeros has shares of 0.
std::vector<BandShare> band_shares(const at::Tensor& matrix, std::span<const int64_t> bandwidths);

/// Bandwidths that show a curve up to `length`: 1, 2, 3, 5, 10, 20, 30, 50, 100 .., and length.
std::vector<int64_t> usual_bandwidths(int64_t length);

}  // namespace fmmformer::analysis
