// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/cluster_bounds.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "attention/cpu/parallel.h"
#include "nn/cpu/exp_sum.h"
#include "nn/cpu/row_product.h"
#include "nn/cpu/short_rows.h"

namespace fmmformer {

using at::Tensor;

namespace {

constexpr int64_t kRowsATask = 256;

/// More than torch's log softmax of a few hundred thousand words in fp32 is off.
constexpr double kRounding = 1e-3;

/// A row is read in full if its word has more than so many times the mean probability. Those are
/// half of the rows at most; of a cluster as uneven as a trained model's a few in a hundred, and
/// nine tenths of its mass.
constexpr double kLikely = 2;

template <typename Work>
void for_rows(int64_t rows, int64_t columns, const Work& work) {
  cpu::parallel_tasks((rows + kRowsATask - 1) / kRowsATask, kRowsATask * columns,
                      [&](int64_t task, cpu::Arena&) {
                        const int64_t begin = task * kRowsATask;
                        work(begin, std::min(begin + kRowsATask, rows));
                      });
}

/// log of the sum of exp(values).
double log_sum(const std::vector<float>& values) {
  const float reference = *std::ranges::max_element(values);
  return static_cast<double>(reference) + std::log(cpu::exp_sum(values, reference));
}

void add(std::vector<float>& values, double summand) {
  const auto rounded = static_cast<float>(summand);
  for (float& value : values) value += rounded;
}

}  // namespace

std::shared_ptr<ClusterBounds> ClusterBounds::of(std::shared_ptr<const AdaptiveSoftmax> softmax,
                                                 const Tensor& table) {
  const auto fits = [](const Tensor& tensor) {
    return tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous();
  };
  if (!fits(table) || !fits(softmax->bias)) return nullptr;
  return std::shared_ptr<ClusterBounds>(new ClusterBounds(std::move(softmax), table));
}

ClusterBounds::ClusterBounds(std::shared_ptr<const AdaptiveSoftmax> softmax, const Tensor& table)
    : softmax_(std::move(softmax)),
      table_(table.detach()),
      bias_(softmax_->bias.detach()),
      rows_(static_cast<size_t>(softmax_->clusters())) {}

int64_t ClusterBounds::memory_bytes() const {
  size_t bytes = 0;
  for (const Rows& rows : rows_) {
    bytes += rows.values.size() + sizeof(float) * (rows.scales.size() + rows.errors.size());
  }
  return static_cast<int64_t>(bytes);
}

ClusterBounds::Rows& ClusterBounds::rows_of(int64_t i) {
  Rows& rows = rows_[static_cast<size_t>(i)];
  if (!rows.values.empty()) return rows;
  const int64_t size = softmax_->cluster_size(i), columns = table_.size(1);
  rows.values.resize(static_cast<size_t>(size * columns));
  rows.scales.resize(static_cast<size_t>(size));
  rows.errors.resize(static_cast<size_t>(size));
  const cpu::RowMatrix matrix{
      table_.const_data_ptr<float>() + softmax_->cluster_begin(i) * columns, columns};
  const cpu::ShortRows to{rows.values.data(), rows.scales.data(), rows.errors.data(), columns};
  for_rows(size, columns, [&](int64_t begin, int64_t end) {
    cpu::shorten_rows(matrix, begin, end, to);
  });
  return rows;
}

void ClusterBounds::read_likely_rows(int64_t i, const float* hidden, Bounds& logits) const {
  const int64_t size = softmax_->cluster_size(i), columns = table_.size(1);
  const int64_t first = softmax_->cluster_begin(i);
  const cpu::RowMatrix matrix{table_.const_data_ptr<float>() + first * columns, columns};
  const float* bias = bias_.const_data_ptr<float>() + first;
  const double likely = log_sum(logits.high) + std::log(kLikely / static_cast<double>(size));
  for_rows(size, columns, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float& high = logits.high[static_cast<size_t>(row)];
      if (!(high > likely)) continue;
      // The very sum that the whole product makes of this row.
      cpu::row_product(matrix, hidden, bias, row, row + 1, logits.high.data());
      logits.low[static_cast<size_t>(row)] = high;
    }
  });
}

ClusterBounds::Bounds ClusterBounds::log_probabilities(int64_t i, const Tensor& hidden,
                                                       double log_mass) {
  Rows& rows = rows_of(i);
  const int64_t size = softmax_->cluster_size(i), columns = table_.size(1);
  const Tensor x = hidden.contiguous();
  const float* bias = bias_.const_data_ptr<float>() + softmax_->cluster_begin(i);
  const cpu::ShortRows from{rows.values.data(), rows.scales.data(), rows.errors.data(), columns};
  // A little more: the norm itself is rounded.
  const auto x_norm = static_cast<float>(x.norm().item<double>() * (1 + 1e-5));
  Bounds bounds{std::vector<float>(static_cast<size_t>(size)),
                std::vector<float>(static_cast<size_t>(size))};
  for_rows(size, columns, [&](int64_t begin, int64_t end) {
    cpu::bound_row_product(from, x.const_data_ptr<float>(), x_norm, bias, begin, end,
                           {bounds.low.data(), bounds.high.data()});
  });
  read_likely_rows(i, x.const_data_ptr<float>(), bounds);
  const double least = log_sum(bounds.low), most = log_sum(bounds.high);
  if (!std::isfinite(least) || !std::isfinite(most) || !std::isfinite(log_mass)) return {};
  add(bounds.low, log_mass - most - kRounding);
  add(bounds.high, log_mass - least + kRounding);
  return bounds;
}

}  // namespace fmmformer
