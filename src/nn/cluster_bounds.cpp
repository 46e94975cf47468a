// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/cluster_bounds.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
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

/// sum of exp(value - highest) over the rows of a task, beside that highest value.
struct ExpSum {
  float highest = 0;
  double sum = 0;

  explicit ExpSum(std::span<const float> values)
      : highest(cpu::highest(values)), sum(cpu::exp_sum(values, highest)) {}
  ExpSum() = default;
};
double log_sum(const std::vector<ExpSum>& parts) {
  float highest = parts[0].highest;
  for (const ExpSum& part : parts) highest = std::max(highest, part.highest);
  double sum = 0;
  for (const ExpSum& part : parts) {
    sum += part.sum * std::exp(static_cast<double>(part.highest) - highest);
  }
  return highest + std::log(sum);
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

struct ClusterBounds::Token::Logits {
  Bounds bounds;
  std::vector<ExpSum> low, high;  // a task's each: made while its rows are at hand

  explicit Logits(int64_t rows)
      : bounds{std::vector<float>(static_cast<size_t>(rows)),
               std::vector<float>(static_cast<size_t>(rows))},
        low(static_cast<size_t>((rows + kRowsATask - 1) / kRowsATask)),
        high(low.size()) {}
  /// After the bounds of a task's rows have changed.
  void add_up(int64_t begin, int64_t end) {
    const auto task = static_cast<size_t>(begin / kRowsATask), first = static_cast<size_t>(begin),
               count = static_cast<size_t>(end - begin);
    low[task] = ExpSum(std::span(bounds.low).subspan(first, count));
    high[task] = ExpSum(std::span(bounds.high).subspan(first, count));
  }
};

ClusterBounds::Token::Token(ClusterBounds& bounds, Tensor hidden)
    : bounds_(bounds), hidden_(hidden.contiguous()), logits_(bounds.rows_.size()) {}

ClusterBounds::Token::Logits& ClusterBounds::Token::logits(int64_t i) {
  std::shared_ptr<Logits>& logits = logits_[static_cast<size_t>(i)];
  if (logits) return *logits;
  const cpu::ShortRows& rows = bounds_.rows_of(i).rows;
  const auto x = cpu::shorten(hidden_.const_data_ptr<float>(), rows.columns);
  logits = std::make_shared<Logits>(rows.rows);
  const float* bias = bounds_.bias_of(i);
  const cpu::ProductBounds out{logits->bounds.low.data(), logits->bounds.high.data()};
  for_rows(rows.rows, rows.columns, [&](int64_t begin, int64_t end) {
    cpu::bound_row_product(rows, x, bias, begin, end, out);
    logits->add_up(begin, end);
  });
  return *logits;
}

void ClusterBounds::Token::sharpen(int64_t i, double likely) {
  Logits& known = logits(i);
  float *low = known.bounds.low.data(), *high = known.bounds.high.data();
  const int64_t size = std::ssize(known.bounds.high), columns = hidden_.size(-1);
  const cpu::RowMatrix matrix{bounds_.table_of(i), columns};
  const float *x = hidden_.const_data_ptr<float>(), *bias = bounds_.bias_of(i);
  const double least = log_sum(known.high) + std::log(likely / static_cast<double>(size));
  for_rows(size, columns, [&](int64_t begin, int64_t end) {
    std::array<int64_t, kRowsATask> rows;
    size_t count = 0;
    for (int64_t row = begin; row < end; ++row) {
      if (high[row] > least && high[row] != low[row]) rows[count++] = row;
    }
    if (count == 0) return;
    for (size_t r = 0; r < count; ++r) {
      // They lie apart: no core guesses which is next.
      if (r + kAhead < count) prefetch(matrix, rows[r + kAhead]);
      // The very sum that the whole product makes of this row.
      cpu::row_product(matrix, x, bias, rows[r], rows[r] + 1, high);
      low[rows[r]] = high[rows[r]];
    }
    known.add_up(begin, end);
  });
}

ClusterBounds::Bounds ClusterBounds::Token::log_probabilities(int64_t i, double log_mass) {
  const Logits& known = logits(i);
  const double least = log_sum(known.low), most = log_sum(known.high);
  if (!std::isfinite(least) || !std::isfinite(most) || !std::isfinite(log_mass)) return {};
  const auto add_low = static_cast<float>(log_mass - most - kRounding),
             add_high = static_cast<float>(log_mass - least + kRounding);
  const size_t size = known.bounds.low.size();
  Bounds result{std::vector<float>(size), std::vector<float>(size)};
  for (size_t row = 0; row < size; ++row) {
    result.low[row] = known.bounds.low[row] + add_low;
    result.high[row] = known.bounds.high[row] + add_high;
  }
  return result;
}

}  // namespace fmmformer
