// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/adaptive_softmax.h"

#include <ATen/ATen.h>

#include "fmmformer/nn/linear_cross_entropy.h"
#include "nn/compacted_rows.h"
#include "nn/linear.h"

namespace fmmformer {

using at::Tensor;

namespace {

/// In fp32 at least: a sum of many exponentials.
Tensor log_shares(const Tensor& logits) {
  return at::log_softmax(logits, -1,
                         logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

}  // namespace

AdaptiveSoftmax::AdaptiveSoftmax(int64_t vocabulary, int64_t dim, std::vector<int64_t> cutoffs)
    : vocabulary_(vocabulary), cutoffs_(std::move(cutoffs)) {
  TORCH_CHECK_VALUE(!cutoffs_.empty(),
                    "adaptive softmax: no cutoffs; give at least one, or use a linear output");
  int64_t last = 0;
  for (const int64_t cutoff : cutoffs_) {
    TORCH_CHECK_VALUE(cutoff > last && cutoff < vocabulary, "adaptive softmax: cutoffs are ",
                      at::IntArrayRef(cutoffs_),
                      "; allowed: ascending, from 1 to vocabulary - 1 = ", vocabulary - 1);
    last = cutoff;
  }
  bias = register_parameter("bias", at::zeros({vocabulary}));
  cluster_ = register_module("cluster", std::make_shared<Linear>(dim, clusters()));
}

int64_t AdaptiveSoftmax::cluster_size(int64_t i) const {
  return (i + 1 < clusters() ? cluster_begin(i + 1) : vocabulary_) - cluster_begin(i);
}

Tensor AdaptiveSoftmax::losses(const Tensor& hidden, const Tensor& targets, const Tensor& table,
                               at::IntArrayRef capacities) const {
  TORCH_CHECK_VALUE(capacities.empty() || std::ssize(capacities) == clusters(),
                    "adaptive softmax: capacities are ", capacities,
                    "; wanted one for each of the ", clusters(), " clusters, or none");
  // Where each token's target lies; gradients of the table's slices would each be as large as the
  // table, so split it once.
  std::vector<int64_t> sizes = {cutoffs_[0]};
  for (int64_t i = 0; i < clusters(); ++i) sizes.push_back(cluster_size(i));
  const auto tables = table.split_with_sizes(sizes), biases = bias.split_with_sizes(sizes);

  Tensor head_targets = targets;
  std::vector<Tensor> members;  // bool [T]
  for (int64_t i = 0; i < clusters(); ++i) {
    const int64_t begin = cluster_begin(i);
    members.push_back(targets.ge(begin).logical_and_(targets.lt(begin + cluster_size(i))));
    head_targets = head_targets.masked_fill(members.back(), head_entry(i));
  }
  Tensor loss = linear_cross_entropy(hidden, at::cat({tables[0], cluster_->weight}),
                                     at::cat({biases[0], cluster_->bias}), head_targets);
  for (int64_t i = 0; i < clusters(); ++i) {
    const auto part = static_cast<size_t>(i);
    const auto tail = [&](const Tensor& rows, const Tensor& words) {
      return linear_cross_entropy(rows, tables[part + 1], biases[part + 1], words);
    };
    const Tensor words = targets - cluster_begin(i);
    if (!capacities.empty()) {
      const CompactedRows compacted(members[part], capacities[part]);
      const Tensor own = compacted.select(words).clamp(0, cluster_size(i) - 1);
      loss = loss + compacted.place(tail(compacted.select(hidden), own));
      continue;
    }
    const Tensor rows = members[part].nonzero().squeeze(1);
    if (rows.numel() == 0) continue;
    loss = loss.index_add(0, rows, tail(hidden.index_select(0, rows), words.index_select(0, rows)));
  }
  return loss;
}

Tensor AdaptiveSoftmax::log_probabilities(const Tensor& hidden, const Tensor& table) const {
  const HeadScores head = head_log_probabilities(hidden, table);
  std::vector<Tensor> parts = {head.words};
  for (int64_t i = 0; i < clusters(); ++i) {
    parts.push_back(cluster_log_probabilities(i, hidden, table) + head.clusters.narrow(-1, i, 1));
  }
  return at::cat(parts, -1);
}

AdaptiveSoftmax::HeadScores AdaptiveSoftmax::head_log_probabilities(const Tensor& hidden,
                                                                    const Tensor& table) const {
  const int64_t words = cutoffs_[0];
  // Logits are put together rather than weights: those are a copy of the table's begin, each time.
  const Tensor logits =
      at::cat({linear(hidden, {table.narrow(0, 0, words), bias.narrow(0, 0, words)}),
               cluster_->forward(hidden)},
              -1);
  const Tensor scores = log_shares(logits);
  return {scores.narrow(-1, 0, words), scores.narrow(-1, words, clusters()).flip(-1)};
}

Tensor AdaptiveSoftmax::cluster_log_probabilities(int64_t i, const Tensor& hidden,
                                                  const Tensor& table) const {
  const int64_t begin = cluster_begin(i), size = cluster_size(i);
  return log_shares(linear(hidden, {table.narrow(0, begin, size), bias.narrow(0, begin, size)}));
}

}  // namespace fmmformer
