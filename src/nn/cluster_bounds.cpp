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

constexpr int64_t kRowsATask = 32 * cpu::kShortBlock;

/// More than torch's log softmax of a few hundred thousand words in fp32 is off.
constexpr double kRounding = 1e-3;

template <typename Work>
void for_rows(int64_t rows, int64_t columns, const Work& work) {
  cpu::parallel_tasks((rows + kRowsATask - 1) / kRowsATask, kRowsATask * columns,
                      [&](int64_t task, cpu::Arena&) {
                        const int64_t begin = task * kRowsATask;
                        work(begin, std::min(begin + kRowsATask, rows));
                      });
}

constexpr size_t kAhead = 4;  // rows; a core has some fifty lines under way
void prefetch(const cpu::RowMatrix& matrix, int64_t row) {
  constexpr int64_t kLine = 64 / sizeof(float);
  const float* values = matrix.values + row * matrix.columns;
  for (int64_t c = 0; c < matrix.columns; c += kLine) __builtin_prefetch(values + c);
}

std::vector<float> plus(const std::vector<float>& values, double summand) {
  const auto rounded = static_cast<float>(summand);
  std::vector<float> sums(values.size());
  std::ranges::transform(values, sums.begin(), [&](float value) { return value + rounded; });
  return sums;
}

}  // namespace

struct ClusterBounds::Rows {
  cpu::ShortRows rows;
};

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
ClusterBounds::~ClusterBounds() = default;

const float* ClusterBounds::table_of(int64_t i) const {
  return table_.const_data_ptr<float>() + softmax_->cluster_begin(i) * table_.size(1);
}
const float* ClusterBounds::bias_of(int64_t i) const {
  return bias_.const_data_ptr<float>() + softmax_->cluster_begin(i);
}

int64_t ClusterBounds::memory_bytes() const {
  size_t bytes = 0;
  for (const auto& made : rows_) {
    if (!made) continue;
    const cpu::ShortRows& rows = made->rows;
    bytes += rows.values.size() + sizeof(float) * (rows.scales.size() + rows.errors.size());
  }
  return static_cast<int64_t>(bytes);
}

const ClusterBounds::Rows& ClusterBounds::rows_of(int64_t i) {
  std::unique_ptr<Rows>& made = rows_[static_cast<size_t>(i)];
  if (made) return *made;
  const int64_t size = softmax_->cluster_size(i), columns = table_.size(1);
  made = std::make_unique<Rows>(cpu::ShortRows(size, columns));
  for_rows(size, columns, [&](int64_t begin, int64_t end) {
    cpu::shorten_rows({table_of(i), columns}, begin, end, made->rows);
  });
  return *made;
}

ClusterBounds::Token::Token(ClusterBounds& bounds, Tensor hidden)
    : bounds_(bounds), hidden_(hidden.contiguous()), logits_(bounds.rows_.size()) {}

ClusterBounds::Bounds& ClusterBounds::Token::logits(int64_t i) {
  Bounds& logits = logits_[static_cast<size_t>(i)];
  if (!logits.low.empty()) return logits;
  const cpu::ShortRows& rows = bounds_.rows_of(i).rows;
  const auto x = cpu::shorten(hidden_.const_data_ptr<float>(), rows.columns);
  logits.low.resize(static_cast<size_t>(rows.rows));
  logits.high.resize(static_cast<size_t>(rows.rows));
  for_rows(rows.rows, rows.columns, [&](int64_t begin, int64_t end) {
    cpu::bound_row_product(rows, x, bounds_.bias_of(i), begin, end,
                           {logits.low.data(), logits.high.data()});
  });
  return logits;
}

void ClusterBounds::Token::sharpen(int64_t i, double likely) {
  Bounds& known = logits(i);
  const int64_t size = std::ssize(known.high), columns = hidden_.size(-1);
  const cpu::RowMatrix matrix{bounds_.table_of(i), columns};
  const float* x = hidden_.const_data_ptr<float>();
  const double least = cpu::log_sum_exp(known.high) + std::log(likely / static_cast<double>(size));
  for_rows(size, columns, [&](int64_t begin, int64_t end) {
    std::vector<int64_t> rows;
    for (int64_t row = begin; row < end; ++row) {
      const auto place = static_cast<size_t>(row);
      if (known.high[place] > least && known.high[place] != known.low[place]) rows.push_back(row);
    }
    for (size_t r = 0; r < rows.size(); ++r) {
      // They lie apart: no core guesses which is next.
      if (r + kAhead < rows.size()) prefetch(matrix, rows[r + kAhead]);
      // The very sum that the whole product makes of this row.
      cpu::row_product(matrix, x, bounds_.bias_of(i), rows[r], rows[r] + 1, known.high.data());
      known.low[static_cast<size_t>(rows[r])] = known.high[static_cast<size_t>(rows[r])];
    }
  });
}

ClusterBounds::Bounds ClusterBounds::Token::log_probabilities(int64_t i, double log_mass) {
  const Bounds& known = logits(i);
  const double least = cpu::log_sum_exp(known.low), most = cpu::log_sum_exp(known.high);
  if (!std::isfinite(least) || !std::isfinite(most) || !std::isfinite(log_mass)) return {};
  return {plus(known.low, log_mass - most - kRounding),
          plus(known.high, log_mass - least + kRounding)};
}

}  // namespace fmmformer
