// SPDX-License-Identifier: Apache-2.0
// The parts of the SIMD kernels, each on every instruction set that this machine has, against plain
// loops.
#include "attention/cpu/targets.h"
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../tests/attention/cpu/simd_parts_test.cpp"
#include "hwy/foreach_target.h"
// clang-format on
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "attention/cpu/features-inl.h"
#include "attention/cpu/products-inl.h"
#include "attention/cpu/simd_math-inl.h"
#include "attention/fmm/cpu/dropout-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {

template <typename T>
std::vector<T> random_numbers(int64_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  std::vector<T> numbers(count);
  for (T& number : numbers) number = static_cast<T>(normal(generator));
  return numbers;
}

template <typename T>
void check_product(int64_t rows, int64_t columns, int64_t depth, bool transposed, Into into) {
  const int64_t stride = columns + 40;
  const auto a = random_numbers<T>(rows * depth, 1), b = random_numbers<T>(depth * stride, 2);
  auto c = random_numbers<T>(rows * stride, 3);
  const auto before = c;
  product(rows, columns, depth,
          transposed ? left_transposed(a.data(), rows) : left_rows(a.data(), depth),
          RowTile<const T>{b.data(), stride}, RowTile<T>{c.data(), stride}, into);
  const double allowed = (sizeof(T) == 4 ? 1e-5 : 1e-13) * (depth + 1);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t n = 0; n < columns; ++n) {
      double expected = into == Into::kAdd ? before[r * stride + n] : 0.0;
      for (int64_t p = 0; p < depth; ++p) {
        expected +=
            static_cast<double>(a[transposed ? p * rows + r : r * depth + p]) * b[p * stride + n];
      }
      ASSERT_NEAR(c[r * stride + n], expected, allowed)
          << rows << " x " << columns << " x " << depth;
    }
  }
}

void CheckProducts() {
  for (const int64_t columns : {1, 4, 16, 17, 33, 48, 64, 80, 200}) {
    for (const int64_t depth : {0, 1, 7, 64, 129, 300}) {
      for (const bool transposed : {false, true}) {
        for (const Into into : {Into::kOverwrite, Into::kAdd}) {
          check_product<float>(16, columns, depth, transposed, into);
          check_product<double>(8, columns, depth, transposed, into);
        }
      }
    }
  }
}

// Far from the band the left factor holds NaN, which must not be multiplied.
template <typename T>
void check_band(int64_t columns, const Band& band, Into into) {
  constexpr int64_t kRows = 24, kDepth = 40;
  const int64_t stride = columns + 16;  // a vector's rest is read and written
  auto a = random_numbers<T>(kRows * kDepth, 8);
  const auto b = random_numbers<T>(kDepth * stride, 9),
             start = random_numbers<T>(kRows * stride, 7);
  auto c = start;
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t p = 0; p < kDepth; ++p) {
      T& number = a[r * kDepth + p];
      if (p < r - band.before || p > r + band.after) number = T(0);
      if (p < r - band.before - 8 || p > r + band.after + 8)
        number = std::numeric_limits<T>::quiet_NaN();
    }
  }
  product_of_band(kRows, columns, kDepth, band, left_rows(a.data(), kDepth),
                  RowTile<const T>{b.data(), stride}, RowTile<T>{c.data(), stride}, into);
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t n = 0; n < columns; ++n) {
      double expected = into == Into::kAdd ? start[r * stride + n] : 0;
      for (int64_t p = 0; p < kDepth; ++p) {
        if (p >= r - band.before && p <= r + band.after)
          expected += static_cast<double>(a[r * kDepth + p]) * b[p * stride + n];
      }
      ASSERT_NEAR(c[r * stride + n], expected, sizeof(T) == 4 ? 1e-4 : 1e-12)
          << columns << " columns, row " << r;
    }
  }
}

void CheckBands() {
  for (const int64_t columns : {7, 16, 24, 32, 48, 64, 80}) {
    for (const Band& band :
         {Band{}, Band{.before = 0, .after = 8}, Band{.before = -3, .after = 7}, Band{.after = 0},
          Band{.before = 0}, Band{.before = 30, .after = -26}}) {
      for (const Into into : {Into::kOverwrite, Into::kAdd}) {
        check_band<float>(columns, band, into);
        check_band<double>(columns, band, into);
      }
    }
  }
}

void CheckProductsOntoAnotherTile() {
  constexpr int64_t kRows = 8, kColumns = 48, kDepth = 130;
  const auto a = random_numbers<double>(kRows * kDepth, 10),
             b = random_numbers<double>(kDepth * kColumns, 11),
             start = random_numbers<double>(kRows * kColumns, 12);
  std::vector<double> c(kRows * kColumns);
  product_onto(start.data(), kRows, kColumns, kDepth, left_rows(a.data(), kDepth),
               RowTile<const double>{b.data(), kColumns}, RowTile<double>{c.data(), kColumns});
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t n = 0; n < kColumns; ++n) {
      double expected = start[r * kColumns + n];
      for (int64_t p = 0; p < kDepth; ++p) expected += a[r * kDepth + p] * b[p * kColumns + n];
      ASSERT_NEAR(c[r * kColumns + n], expected, 1e-11);
    }
  }
}

template <typename T>
void check_lanes() {
  const hn::ScalableTag<T> d;
  const auto numbers = random_numbers<T>(kRowsTogether * hn::Lanes(d), 4);
  hn::Vec<hn::ScalableTag<T>> rows[kRowsTogether];
  for (int64_t r = 0; r < kRowsTogether; ++r)
    rows[r] = hn::LoadU(d, numbers.data() + r * hn::Lanes(d));
  T sums[kRowsTogether], largest[kRowsTogether];
  sums_of_lanes(d, rows, sums);
  largest_of_lanes(d, rows, largest);
  for (int64_t r = 0; r < kRowsTogether; ++r) {
    const T* row = numbers.data() + r * hn::Lanes(d);
    double sum = 0;
    for (size_t n = 0; n < hn::Lanes(d); ++n) sum += row[n];
    EXPECT_NEAR(sums[r], sum, sizeof(T) == 4 ? 1e-5 : 1e-13);
    EXPECT_EQ(largest[r], *std::max_element(row, row + hn::Lanes(d)));
  }
}

void CheckLanes() {
  check_lanes<float>();
  check_lanes<double>();
}

void CheckTransposes() {
  constexpr int64_t kRows = 20, kColumns = 48;
  const auto from = random_numbers<float>(kRows * kColumns, 4);
  std::vector<float> to(kRows * kColumns);
  transpose(kRows, kColumns, from.data(), kColumns, to.data(), kRows);
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < kColumns; ++c) ASSERT_EQ(to[c * kRows + r], from[r * kColumns + c]);
  }
}

void CheckTriangles() {
  constexpr int64_t kRows = 32, kDepth = 16, kColumns = 16;
  const auto a = random_numbers<double>(kRows * kDepth, 5),
             b = random_numbers<double>(kDepth * kRows, 6);
  const auto v = random_numbers<double>(kRows * kColumns, 7);
  std::vector<double> lower(kRows * kRows), times(kRows * kColumns), transposed(kRows * kColumns);
  product_lower(kRows, kDepth, left_rows(a.data(), kDepth), RowTile<const double>{b.data(), kRows},
                RowTile<double>{lower.data(), kRows});
  lower_times<double>(kRows, kColumns, lower.data(), kRows, {v.data(), kColumns},
                      {times.data(), kColumns}, Into::kOverwrite);
  lower_transposed_times<double>(kRows, kColumns, lower.data(), kRows, {v.data(), kColumns},
                                 {transposed.data(), kColumns}, Into::kOverwrite);
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t e = 0; e < kColumns; ++e) {
      double row = 0, column = 0;
      for (int64_t j = 0; j < kRows; ++j) {
        row += j <= i ? lower[i * kRows + j] * v[j * kColumns + e] : 0.0;
        column += j >= i ? lower[j * kRows + i] * v[j * kColumns + e] : 0.0;
      }
      ASSERT_NEAR(times[i * kColumns + e], row, 1e-12);
      ASSERT_NEAR(transposed[i * kColumns + e], column, 1e-12);
    }
  }
}

template <typename T>
T exp_of(T x) {
  const hn::ScalableTag<T> d;
  return hn::GetLane(exp_nonpositive(d, hn::Set(d, x)));
}

void CheckExponentials() {
  for (float x = -87.0f; x <= 0.0f; x += 0.0137f) {
    ASSERT_NEAR(exp_of(x) / std::exp(static_cast<double>(x)), 1.0, 2e-7) << x;
  }
  for (double x = -700.0; x <= 0.0; x += 0.137)
    ASSERT_NEAR(exp_of(x) / std::exp(x), 1.0, 1e-15) << x;
  EXPECT_EQ(exp_of(0.0f), 1.0f);
  EXPECT_EQ(exp_of(-1e30f), 0.0f);
  EXPECT_EQ(exp_of(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_TRUE(std::isnan(exp_of(std::numeric_limits<float>::quiet_NaN())));
}

// The slope of each feature map against a difference quotient of its value.
void CheckFeatureSlopes() {
  const hn::ScalableTag<double> d;
  const VectorOps<decltype(d)> ops{d};
  const auto value = [&](FeatureMap map, double x) HWY_ATTR {
    const auto v = hn::Set(d, x);
    return hn::GetLane(feature_value(ops, map, v, exp_minus_abs(d, v)));
  };
  for (const auto& [map, name] : EnumTable<FeatureMap>::entries()) {
    for (const double x : {-30.0, -3.0, -0.4, 0.7, 2.5, 30.0}) {
      const auto v = hn::Set(d, x);
      const double slope = hn::GetLane(feature_slope(ops, map, v, exp_minus_abs(d, v)));
      const double quotient = (value(map, x + 1e-6) - value(map, x - 1e-6)) / 2e-6;
      EXPECT_NEAR(slope, quotient, 1e-8) << name << " at " << x;
    }
  }
}

void CheckDropoutAgainstScalarPhilox() {
  const Dropout dropout{.seed = 0x123456789abcdef0, .head = 7, .probability = 0.25};
  const auto expected = [&](int64_t query, int64_t key) {
    const auto i = static_cast<uint32_t>(query), j = static_cast<uint32_t>(key);
    const PhiloxBlock block = philox_block(near_dropout_counter(i, j, 7), 0x9abcdef0, 0x12345678);
    const uint32_t bits = near_dropout_bits(block.word[near_dropout_word(i, j)], j);
    return bits < near_dropout_threshold(0.25) ? 0.0f : static_cast<float>(1 / 0.75);
  };
  std::vector<float> row(kDropoutColumns);
  for (const int64_t query : {1000, 1007, 1008, 1015}) {
    for (const int64_t first : {999, 1000, 992, 0}) {
      dropout_for_query(dropout, query, first, 130, row.data());
      for (int64_t c = 0; c < 130; ++c)
        ASSERT_EQ(row[c], expected(query, first + c)) << query << ", " << first + c;
    }
  }
}

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fmmformer {

namespace cpu {
namespace {

HWY_EXPORT(CheckProducts);
HWY_EXPORT(CheckBands);
HWY_EXPORT(CheckProductsOntoAnotherTile);
HWY_EXPORT(CheckLanes);
HWY_EXPORT(CheckTransposes);
HWY_EXPORT(CheckTriangles);
HWY_EXPORT(CheckExponentials);
HWY_EXPORT(CheckFeatureSlopes);
HWY_EXPORT(CheckDropoutAgainstScalarPhilox);

// Runs `check` once for every instruction set, worst first.
template <typename Check>
void on_every_target(const Check& check) {
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    const int64_t target = left & -left;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    SCOPED_TRACE(hwy::TargetName(target));
    check();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

TEST(SimdParts, ProductsEqualPlainLoopsForAnyShape) {
  on_every_target([] { HWY_DYNAMIC_DISPATCH(CheckProducts)(); });
}
TEST(SimdParts, ProductsOfABandLeaveOutWhatIsFarFromIt) {
  on_every_target([] { HWY_DYNAMIC_DISPATCH(CheckBands)(); });
}
TEST(SimdParts, ProductsAddToAnotherTile) {
  on_every_target([] { HWY_DYNAMIC_DISPATCH(CheckProductsOntoAnotherTile)(); });
}
TEST(SimdParts, LanesOfEightRowsAreCombinedRowByRow) {
  on_every_target([] { HWY_DYNAMIC_DISPATCH(CheckLanes)(); });
}
TEST(SimdParts, TransposesMoveEveryElement) {
  on_every_target([] { HWY_DYNAMIC_DISPATCH(CheckTransposes)(); });
}
TEST(SimdParts, TriangularProductsLeaveTheOtherTriangleOut) {
  on_every_target([] { HWY_DYNAMIC_DISPATCH(CheckTriangles)(); });
}
TEST(SimdParts, ExponentialIsExactToTwoUnitsAndKeepsNan) {
  on_every_target([] { HWY_DYNAMIC_DISPATCH(CheckExponentials)(); });
}
TEST(SimdParts, FeatureSlopesAreTheDerivativesOfTheValues) {
  on_every_target([] { HWY_DYNAMIC_DISPATCH(CheckFeatureSlopes)(); });
}
TEST(SimdParts, DropoutTilesDrawTheWordsOfScalarPhilox) {
  on_every_target([] { HWY_DYNAMIC_DISPATCH(CheckDropoutAgainstScalarPhilox)(); });
}

}  // namespace
}  // namespace cpu
}  // namespace fmmformer
#endif  // HWY_ONCE
