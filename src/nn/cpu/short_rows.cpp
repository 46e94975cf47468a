// SPDX-License-Identifier: Apache-2.0
#include "attention/cpu/targets.h"
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/cpu/short_rows.cpp"
#include "hwy/foreach_target.h"
// clang-format on
#include <algorithm>
#include <cmath>

#include "hwy/highway.h"
#include "nn/cpu/short_rows.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kShortRowsAtOnce = 4;  // x is loaded once, and four sums hide each other's latency

template <int kRows>
HWY_INLINE void bound_rows(const ShortRows& rows, const float* x, float x_norm, const float* bias,
                           int64_t first, const ProductBounds& out) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<int32_t, decltype(d)> d32;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  hn::Vec<decltype(d)> sum[kRows];
  for (int r = 0; r < kRows; ++r) sum[r] = hn::Zero(d);
  const int8_t* values = rows.values + first * rows.columns;
  int64_t c = 0;
  for (; c + lanes <= rows.columns; c += lanes) {
    const auto factor = hn::LoadU(d, x + c);
    for (int r = 0; r < kRows; ++r) {
      const auto eight = hn::LoadU(d8, values + r * rows.columns + c);
      sum[r] = hn::MulAdd(hn::ConvertTo(d, hn::PromoteTo(d32, eight)), factor, sum[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    float product = hn::GetLane(hn::SumOfLanes(d, sum[r]));
    for (int64_t rest = c; rest < rows.columns; ++rest) {
      product += static_cast<float>(values[r * rows.columns + rest]) * x[rest];
    }
    const float middle = rows.scales[first + r] * product + (bias ? bias[first + r] : 0.0F);
    const float error = rows.errors[first + r] * x_norm;
    out.low[first + r] = middle - error;
    out.high[first + r] = middle + error;
  }
}

void BoundRowProduct(const ShortRows& rows, const float* x, float x_norm, const float* bias,
                     int64_t begin, int64_t end, const ProductBounds& out) {
  int64_t i = begin;
  for (; i + kShortRowsAtOnce <= end; i += kShortRowsAtOnce) {
    bound_rows<kShortRowsAtOnce>(rows, x, x_norm, bias, i, out);
  }
  for (; i < end; ++i) bound_rows<1>(rows, x, x_norm, bias, i, out);
}

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fmmformer::cpu {

HWY_EXPORT(BoundRowProduct);

void shorten_rows(const RowMatrix& matrix, int64_t begin, int64_t end, const ShortRows& to) {
  // A sum of n products is off by n 2^-24 of |row| |x| at most, in whatever order; there are two,
  // and twice that covers a scale, a bias and this norm itself.
  const double rounding = std::ldexp(4.0 * static_cast<double>(matrix.columns), -24);
  for (int64_t i = begin; i < end; ++i) {
    const float* row = matrix.values + i * matrix.columns;
    int8_t* values = to.values + i * matrix.columns;
    float largest = 0;
    for (int64_t c = 0; c < matrix.columns; ++c) largest = std::max(largest, std::abs(row[c]));
    const float scale = largest / 127, inverse = largest > 0 ? 127 / largest : 0;
    double rest = 0, square = 0;
    for (int64_t c = 0; c < matrix.columns; ++c) {
      const float rounded = std::clamp(std::nearbyint(row[c] * inverse), -127.0F, 127.0F);
      // A value that is no number makes the error one that is none, whatever is stored for it.
      values[c] = static_cast<int8_t>(rounded == rounded ? rounded : 0.0F);
      const double difference = static_cast<double>(row[c]) - static_cast<double>(scale) * rounded;
      rest += difference * difference;
      square += static_cast<double>(row[c]) * row[c];
    }
    to.scales[i] = scale;
    to.errors[i] = static_cast<float>(std::sqrt(rest) + rounding * std::sqrt(square));
  }
}

void bound_row_product(const ShortRows& rows, const float* x, float x_norm, const float* bias,
                       int64_t begin, int64_t end, const ProductBounds& out) {
  HWY_DYNAMIC_DISPATCH(BoundRowProduct)(rows, x, x_norm, bias, begin, end, out);
}

}  // namespace fmmformer::cpu
#endif  // HWY_ONCE
