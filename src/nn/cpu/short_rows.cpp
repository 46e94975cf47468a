// SPDX-License-Identifier: Apache-2.0
#include "attention/cpu/targets.h"
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/cpu/short_rows.cpp"
#include "hwy/foreach_target.h"
// clang-format on
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "hwy/highway.h"
#include "nn/cpu/short_rows.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// A block's products with x, as whole numbers, and what follows for its rows.
HWY_INLINE void bound_block(const ShortRows& rows, const ShortVector& x, const float* bias,
                            int64_t block, const ProductBounds& out) {
  const hn::CappedTag<float, kShortBlock> d;
  const hn::RebindToSigned<decltype(d)> d32;
  const hn::Repartition<int16_t, decltype(d32)> d16;
  const hn::Rebind<int8_t, decltype(d16)> d8;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t pairs = rows.pairs();
  const int8_t* values = rows.values.data() + block * pairs * 2 * kShortBlock;
  // |values| <= 127 sqrt(columns): what the rest of x can add.
  const float x_error = 127 * std::sqrt(static_cast<float>(rows.columns)) * x.error;
  for (int64_t lane = 0; lane < kShortBlock; lane += lanes) {
    auto even = hn::Zero(d32), odd = hn::Zero(d32);
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const auto eight = hn::LoadU(d8, values + 2 * (pair * kShortBlock + lane));
      const auto factors = hn::BitCast(d16, hn::Set(d32, x.pairs[static_cast<size_t>(pair)]));
      even = hn::ReorderWidenMulAccumulate(d32, hn::PromoteTo(d16, eight), factors, even, odd);
    }
    const auto sum = hn::ConvertTo(d, hn::RearrangeToOddPlusEven(even, odd));
    const int64_t row = block * kShortBlock + lane;
    const auto scale = hn::LoadU(d, rows.scales.data() + row);
    const auto summand = hn::LoadU(d, bias + lane);
    const auto middle = hn::MulAdd(hn::Mul(scale, hn::Set(d, x.scale)), sum, summand);
    const auto rounding = hn::Mul(hn::Abs(summand), hn::Set(d, 0x1p-22F));
    const auto error = hn::MulAdd(hn::LoadU(d, rows.errors.data() + row), hn::Set(d, x.norm),
                                  hn::MulAdd(scale, hn::Set(d, x_error), rounding));
    hn::StoreU(hn::Sub(middle, error), d, out.low + lane);
    hn::StoreU(hn::Add(middle, error), d, out.high + lane);
  }
}

void BoundRowProduct(const ShortRows& rows, const ShortVector& x, const float* bias, int64_t begin,
                     int64_t end, const ProductBounds& out) {
  std::array<float, kShortBlock> biases{}, low, high;
  for (int64_t row = begin; row < end; row += kShortBlock) {
    const int64_t count = std::min(kShortBlock, end - row);
    if (bias) std::copy_n(bias + row, count, biases.begin());
    if (count == kShortBlock) {
      bound_block(rows, x, biases.data(), row / kShortBlock, {out.low + row, out.high + row});
      continue;
    }
    bound_block(rows, x, biases.data(), row / kShortBlock, {low.data(), high.data()});
    std::copy_n(low.begin(), count, out.low + row);
    std::copy_n(high.begin(), count, out.high + row);
  }
}

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fmmformer::cpu {

HWY_EXPORT(BoundRowProduct);

ShortRows::ShortRows(int64_t rows, int64_t columns) : rows(rows), columns(columns) {
  const auto padded = static_cast<size_t>((rows + kShortBlock - 1) / kShortBlock * kShortBlock);
  values.resize(padded * static_cast<size_t>(2 * pairs()));
  scales.resize(padded), errors.resize(padded);
}

void shorten_rows(const RowMatrix& matrix, int64_t begin, int64_t end, ShortRows& to) {
  // A sum of n products is off by n 2^-24 of |row| |x| at most, in whatever order; there are two,
  // and twice that covers scales and the norms themselves. A bias adds its own, in bound_block.
  const double rounding = std::ldexp(4.0 * static_cast<double>(matrix.columns), -24);
  for (int64_t i = begin; i < end; ++i) {
    const float* row = matrix.values + i * matrix.columns;
    int8_t* values =
        to.values.data() + 2 * (i / kShortBlock * to.pairs() * kShortBlock + i % kShortBlock);
    float largest = 0;
    for (int64_t c = 0; c < matrix.columns; ++c) largest = std::max(largest, std::abs(row[c]));
    const float scale = largest / 127, inverse = largest > 0 ? 127 / largest : 0;
    double rest = 0, square = 0;
    for (int64_t c = 0; c < matrix.columns; ++c) {
      const float rounded = std::clamp(std::nearbyint(row[c] * inverse), -127.0F, 127.0F);
      // A value that is no number makes the error one that is none, whatever is stored for it.
      values[c / 2 * 2 * kShortBlock + c % 2] =
          static_cast<int8_t>(rounded == rounded ? rounded : 0.0F);
      const double difference = static_cast<double>(row[c]) - static_cast<double>(scale) * rounded;
      rest += difference * difference;
      square += static_cast<double>(row[c]) * row[c];
    }
    to.scales[static_cast<size_t>(i)] = scale;
    to.errors[static_cast<size_t>(i)] =
        static_cast<float>(std::sqrt(rest) + rounding * std::sqrt(square));
  }
}

ShortVector shorten(const float* x, int64_t columns) {
  constexpr double kMore = 1 + 1e-5;  // norms are rounded themselves
  const auto limit = static_cast<float>(
      std::min<int64_t>(std::numeric_limits<int16_t>::max(),
                        std::numeric_limits<int32_t>::max() / (127 * (columns + 1))));
  float largest = 0;
  for (int64_t c = 0; c < columns; ++c) largest = std::max(largest, std::abs(x[c]));
  ShortVector out{.scale = largest / limit};
  double rest = 0, square = 0;
  std::vector<int16_t> values(static_cast<size_t>(columns + 1), 0);
  for (int64_t c = 0; c < columns; ++c) {
    const float rounded =
        largest > 0 ? std::clamp(std::nearbyint(x[c] / out.scale), -limit, limit) : 0.0F;
    values[static_cast<size_t>(c)] = static_cast<int16_t>(rounded == rounded ? rounded : 0.0F);
    const double difference = static_cast<double>(x[c]) - static_cast<double>(out.scale) * rounded;
    rest += difference * difference;
    square += static_cast<double>(x[c]) * x[c];
  }
  for (size_t c = 0; c + 1 < values.size(); c += 2) {
    out.pairs.push_back(std::bit_cast<int32_t>(std::array{values[c], values[c + 1]}));
  }
  out.norm = static_cast<float>(std::sqrt(square) * kMore);
  out.error = static_cast<float>(std::sqrt(rest) * kMore);
  return out;
}

void bound_row_product(const ShortRows& rows, const ShortVector& x, const float* bias,
                       int64_t begin, int64_t end, const ProductBounds& out) {
  HWY_DYNAMIC_DISPATCH(BoundRowProduct)(rows, x, bias, begin, end, out);
}

}  // namespace fmmformer::cpu
#endif  // HWY_ONCE
