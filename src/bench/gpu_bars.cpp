// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_bars.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace fmmformer::bench {
namespace {

constexpr std::string_view kSoftmax = "sdpa";

/// The rows of one type, by the name of their case.
class Rows {
 public:
  Rows(const std::vector<GpuRow>& rows, c10::ScalarType dtype) : rows_(rows), dtype_(dtype) {}

  template <typename Visit>
  void visit_all(const Visit& visit) const {
    for (const GpuRow& row : rows_) {
      if (row.dtype == dtype_) visit(row);
    }
  }
  /// Those that have numbers.
  template <typename Visit>
  void visit(const Visit& visit) const {
    visit_all([&](const GpuRow& row) {
      if (row.failure.empty()) visit(row);
    });
  }

  const GpuRow* find(std::string_view name) const {
    const GpuRow* found = nullptr;
    visit([&](const GpuRow& row) {
      if (row.attention_case.name == name) found = &row;
    });
    return found;
  }

  std::string type() const { return std::string(dtype_name(dtype_)); }

 private:
  const std::vector<GpuRow>& rows_;
  c10::ScalarType dtype_;
};

void add_growth(std::vector<Bar>& bars, const Rows& rows, std::string_view longer, double times) {
  const GpuRow *base = rows.find("gpu_65536_r3_band30"), *row = rows.find(longer);
  if (base == nullptr || row == nullptr) return;
  const double factor = row->ours.graph.median / base->ours.graph.median;
  bars.push_back({.what = rows.type() + ": time of " + std::to_string(row->attention_case.length) +
                          " tokens over that of 65536",
                  .measured = bar_number("%.2f x", factor),
                  .wanted = bar_number("%.0f x +- 10 %%", times),
                  .met = std::abs(factor / times - 1) <= 0.1});
}

/// How many rows keep to their limits, and the names of those that do not, or that failed.
void add_limits(std::vector<Bar>& bars, const Rows& rows) {
  int limited = 0, kept = 0;
  std::string missed;
  rows.visit_all([&](const GpuRow& row) {
    if (!row.limit_seconds() && !row.limit_bytes()) return;
    ++limited;
    if (row.failure.empty() && row.is_within_limits()) {
      ++kept;
    } else {
      missed += (missed.empty() ? " (not " : ", ") + row.attention_case.name;
    }
  });
  if (limited == 0) return;
  bars.push_back({.what = rows.type() + ": rows within their limits of time and memory" + missed +
                          (missed.empty() ? "" : ")"),
                  .measured = std::to_string(kept) + " of " + std::to_string(limited),
                  .wanted = "all",
                  .met = kept == limited});
}

void add_eager(std::vector<Bar>& bars, const Rows& rows) {
  const GpuRow* worst = nullptr;
  rows.visit([&](const GpuRow& row) {
    if (worst == nullptr || row.eager_extra() > worst->eager_extra()) worst = &row;
  });
  if (worst == nullptr) return;
  constexpr double kMost = 0.15e-3;
  bars.push_back({.what = rows.type() + ": eager through autograd above the graph, at worst (" +
                          worst->attention_case.name + ")",
                  .measured = bar_number("%.3f ms", worst->eager_extra() * 1e3),
                  .wanted = "<= 0.15 ms",
                  .met = worst->eager_extra() <= kMost});
}

void add_softmax_at_length(std::vector<Bar>& bars, const Rows& rows) {
  const GpuRow* row = rows.find("gpu_65536_r3_band30");
  const GpuMeasurement* softmax = row == nullptr ? nullptr : row->peer(kSoftmax);
  if (softmax == nullptr) return;
  const double factor = softmax->graph.median / row->ours.graph.median;
  bars.push_back({.what = rows.type() + ": softmax over 3 + 30 at 65536 tokens",
                  .measured = bar_number("%.1f x", factor),
                  .wanted = ">= 20 x",
                  .met = factor >= 20});
}

/// Wherever there is a limit, softmax must take longer.
void add_softmax_everywhere(std::vector<Bar>& bars, const Rows& rows) {
  const GpuRow* worst = nullptr;
  const auto factor = [](const GpuRow& row) {
    return row.peer(kSoftmax)->graph.median / row.ours.graph.median;
  };
  rows.visit([&](const GpuRow& row) {
    if (!row.limit_seconds() || row.peer(kSoftmax) == nullptr) return;
    if (worst == nullptr || factor(row) < factor(*worst)) worst = &row;
  });
  if (worst == nullptr) return;
  bars.push_back({.what = rows.type() + ": softmax over ours where there is a limit, at worst (" +
                          worst->attention_case.name + ")",
                  .measured = bar_number("%.2f x", factor(*worst)),
                  .wanted = "> 1 x",
                  .met = factor(*worst) > 1});
}

/// From the longest of the short cases down, as far as ours stays faster.
void add_crossover(std::vector<Bar>& bars, const Rows& rows) {
  std::vector<const GpuRow*> shorts;
  rows.visit([&](const GpuRow& row) {
    if (row.attention_case.name.starts_with("gpu_short_") && row.peer(kSoftmax) != nullptr)
      shorts.push_back(&row);
  });
  if (shorts.size() < 2) return;
  std::ranges::sort(shorts, std::ranges::greater(),
                    [](const GpuRow* row) { return row->attention_case.length; });
  int64_t shortest = 0;
  for (const GpuRow* row : shorts) {
    if (row->ours.graph.median >= row->peer(kSoftmax)->graph.median) break;
    shortest = row->attention_case.length;
  }
  bars.push_back({.what = rows.type() + ": shortest length at which 2 + 20 beats softmax, 32768 "
                                        "tokens in all",
                  .measured = shortest > 0
                                  ? std::to_string(shortest)
                                  : "over " + std::to_string(shorts.front()->attention_case.length),
                  .wanted = "<= 512",
                  .met = shortest > 0 && shortest <= 512});
}

}  // namespace

std::string bar_number(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

std::vector<Bar> bars_of(const std::vector<GpuRow>& rows) {
  std::vector<Bar> bars;
  for (const c10::ScalarType dtype : {c10::kBFloat16, c10::kHalf, c10::kFloat}) {
    const Rows of_type(rows, dtype);
    add_limits(bars, of_type);
    add_growth(bars, of_type, "gpu_262144_r3_band30", 4);
    add_growth(bars, of_type, "gpu_1048576_r3_band30", 16);
    add_eager(bars, of_type);
    if (dtype != c10::kBFloat16) continue;
    add_softmax_at_length(bars, of_type);
    add_softmax_everywhere(bars, of_type);
    add_crossover(bars, of_type);
  }
  return bars;
}

Bar step_bar(const Timing& step, c10::ScalarType dtype) {
  constexpr double kMost = 10e-6;
  return {.what = std::string(dtype_name(dtype)) +
                  ": one decoding step, one sequence, 8 heads of 64, 3 + 30, graph",
          .measured = bar_number("%.1f us", step.median * 1e6),
          .wanted = "<= 10 us",
          .met = step.median <= kMost};
}

}  // namespace fmmformer::bench
