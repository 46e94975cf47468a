// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "fmmformer/nn/layers.h"

namespace fmmformer {

/// A softmax over many words in two steps, its weights tied to the embedding table: the head knows
/// the words below the first cutoff and one entry for each cluster [cutoff_i, cutoff_{i+1}), and
///   log p(w) = head(w)                               for a word of the head
///   log p(w) = head(cluster i) + log softmax_i(w)    for a word of cluster i
/// Of the head's cluster entries the last belongs to the first cluster, as the authors have it
/// (a mere permutation of what is published). Words are numbered by falling frequency.
class AdaptiveSoftmax : public torch::nn::Module {
 public:
  /// `cutoffs` ascend and lie in 1 .. vocabulary - 1.
  AdaptiveSoftmax(int64_t vocabulary, int64_t dim, std::vector<int64_t> cutoffs);

  /// -log p of every token's target: hidden [T, dim], targets int64 [T], table [vocabulary, dim]
  /// -> [T]. Never holds [T, vocabulary].
  /// The host waits for the device to learn how many targets each cluster has, unless it is told
  /// how many rows to give to each (nn/cluster_capacity.h): then shapes do not depend on the data
  /// and a graph can hold it. The result is the same; a cluster with more targets than rows gives
  /// NaN for those.
  at::Tensor losses(const at::Tensor& hidden, const at::Tensor& targets, const at::Tensor& table,
                    at::IntArrayRef capacities = {}) const;

  /// log p of every word: [T, vocabulary], in fp32 (fp64 for fp64). For few tokens.
  at::Tensor log_probabilities(const at::Tensor& hidden, const at::Tensor& table) const;

  /// The two steps of it, for whoever can do without some clusters.
  struct HeadScores {
    at::Tensor words;     // [T, first cutoff]  log p of the head's words
    at::Tensor clusters;  // [T, clusters]      log p of each cluster as a whole, by rising cutoff
  };
  HeadScores head_log_probabilities(const at::Tensor& hidden, const at::Tensor& table) const;
  /// log p of cluster i's words among themselves: [T, its size].
  at::Tensor cluster_log_probabilities(int64_t i, const at::Tensor& hidden,
                                       const at::Tensor& table) const;

  int64_t clusters() const { return static_cast<int64_t>(cutoffs_.size()); }
  int64_t cluster_begin(int64_t i) const { return cutoffs_[static_cast<size_t>(i)]; }
  int64_t cluster_size(int64_t i) const;

  at::Tensor bias;  // [vocabulary]

 private:
  int64_t head_entry(int64_t i) const { return cutoffs_[0] + clusters() - 1 - i; }

  int64_t vocabulary_;
  std::vector<int64_t> cutoffs_;
  std::shared_ptr<Linear> cluster_;  // dim -> one logit a cluster
};

}  // namespace fmmformer
