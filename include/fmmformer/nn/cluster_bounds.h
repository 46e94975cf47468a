// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "fmmformer/nn/adaptive_softmax.h"

namespace fmmformer {

/// What the words of an adaptive softmax's clusters can have at most, and have at least, for a
/// third of what it costs to know: from a copy of their weights in 8 bits, made when a cluster is
/// first asked for. Rows that carry most of a cluster's probability are read in full, so that the
/// sum over the cluster, and with it the bounds of its likely words, are narrow.
class ClusterBounds {
 public:
  /// Of weights as they are now. None where there is no kernel for it: other devices than a CPU,
  /// other types than fp32.
  static std::shared_ptr<ClusterBounds> of(std::shared_ptr<const AdaptiveSoftmax> softmax,
                                           const at::Tensor& table);

  struct Bounds {
    std::vector<float> low, high;  // [words]; empty: there are none, the weights are not finite
  };
  /// Of log p of cluster i's words, where the cluster as a whole has `log_mass`. What
  /// AdaptiveSoftmax computes for them lies between, rounding included. hidden: [1, dim].
  Bounds log_probabilities(int64_t i, const at::Tensor& hidden, double log_mass);

  int64_t memory_bytes() const;

 private:
  struct Rows {
    std::vector<int8_t> values;
    std::vector<float> scales, errors;
  };

  ClusterBounds(std::shared_ptr<const AdaptiveSoftmax> softmax, const at::Tensor& table);
  Rows& rows_of(int64_t i);
  void read_likely_rows(int64_t i, const float* hidden, Bounds& logits) const;

  std::shared_ptr<const AdaptiveSoftmax> softmax_;
  at::Tensor table_, bias_;
  std::vector<Rows> rows_;  // of a cluster that was not asked for: empty
};

}  // namespace fmmformer
