// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "fmmformer/nn/adaptive_softmax.h"

namespace fmmformer {

/// What the words of an adaptive softmax's clusters have at least, and at most, for a fraction of
/// what it costs to know: from a copy of their weights in 8 bits, made when a cluster is first
/// asked for. Kept for a text; ClusterBounds::Token is about one of its tokens.
class ClusterBounds {
 public:
  /// Of weights that stay as they are meanwhile. None where there is no kernel for it: other
  /// devices than a CPU, other types than fp32.
  static std::shared_ptr<ClusterBounds> of(std::shared_ptr<const AdaptiveSoftmax> softmax,
                                           const at::Tensor& table);
  ~ClusterBounds();

  int64_t memory_bytes() const;

  struct Bounds {
    std::vector<float> low, high;  // [words]; empty: there are none, the weights are not finite
  };

  /// The bounds for one hidden state, [1, dim]. Must not outlive the ClusterBounds.
  class Token {
   public:
    Token(ClusterBounds& bounds, at::Tensor hidden);

    /// Of log p of cluster i's words, where the cluster as a whole has `log_mass`. What
    /// AdaptiveSoftmax computes for them lies between, rounding included.
    Bounds log_probabilities(int64_t i, double log_mass);
    /// Reads those rows of the cluster in full whose words have more than `likely` times the mean
    /// probability: they carry most of it, so that the sum over the cluster and with it the bounds
    /// of its likely words become narrow.
    void sharpen(int64_t i, double likely);

   private:
    struct Logits;  // a cluster's, and the sums of their exponentials
    Logits& logits(int64_t i);

    ClusterBounds& bounds_;
    at::Tensor hidden_;
    std::vector<std::shared_ptr<Logits>> logits_;  // of a cluster that was not asked for: none
  };

 private:
  struct Rows;  // a cluster's in 8 bits

  ClusterBounds(std::shared_ptr<const AdaptiveSoftmax> softmax, const at::Tensor& table);
  const Rows& rows_of(int64_t i);
  const float* table_of(int64_t i) const;
  const float* bias_of(int64_t i) const;

  std::shared_ptr<const AdaptiveSoftmax> softmax_;
  at::Tensor table_, bias_;
  std::vector<std::unique_ptr<Rows>> rows_;
};

}  // namespace fmmformer
