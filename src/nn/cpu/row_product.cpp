// SPDX-License-Identifier: Apache-2.0
#include "attention/cpu/targets.h"
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/cpu/row_product.cpp"
#include "hwy/foreach_target.h"
// clang-format on
#include "hwy/highway.h"
#include "nn/cpu/load_first-inl.h"
#include "nn/cpu/row_product.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kRowsAtOnce = 4;  // as many streams as a core reads ahead well; x is loaded once

template <int kRows>
HWY_INLINE void dot_rows(const RowMatrix& matrix, const float* x, const float* bias, int64_t first,
                         float* out) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const float* row[kRows];
  hn::Vec<decltype(d)> sum[kRows];
  for (int r = 0; r < kRows; ++r) {
    row[r] = matrix.values + (first + r) * matrix.columns;
    sum[r] = hn::Zero(d);
  }
  int64_t c = 0;
  for (; c + lanes <= matrix.columns; c += lanes) {
    const auto factor = hn::LoadU(d, x + c);
    for (int r = 0; r < kRows; ++r) sum[r] = hn::MulAdd(hn::LoadU(d, row[r] + c), factor, sum[r]);
  }
  if (c < matrix.columns) {
    const auto rest = static_cast<size_t>(matrix.columns - c);
    const auto factor = load_first(d, x + c, rest);
    for (int r = 0; r < kRows; ++r) {
      sum[r] = hn::MulAdd(load_first(d, row[r] + c, rest), factor, sum[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    out[first + r] = hn::GetLane(hn::SumOfLanes(d, sum[r])) + (bias ? bias[first + r] : 0.0F);
  }
}

void RowProduct(const RowMatrix& matrix, const float* x, const float* bias, int64_t begin,
                int64_t end, float* out) {
  int64_t i = begin;
  for (; i + kRowsAtOnce <= end; i += kRowsAtOnce) {
    dot_rows<kRowsAtOnce>(matrix, x, bias, i, out);
  }
  for (; i < end; ++i) dot_rows<1>(matrix, x, bias, i, out);
}

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fmmformer::cpu {

HWY_EXPORT(RowProduct);

void row_product(const RowMatrix& matrix, const float* x, const float* bias, int64_t begin,
                 int64_t end, float* out) {
  HWY_DYNAMIC_DISPATCH(RowProduct)(matrix, x, bias, begin, end, out);
}

}  // namespace fmmformer::cpu
#endif  // HWY_ONCE
