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

/// <row, x>. One row after the other: a single stream is what cores read ahead best. Four rows at
/// once load x a fourth as often, and take twice the time where the matrix comes from memory.
HWY_INLINE float dot_row(const float* row, const float* x, int64_t columns) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int kSums = 4;  // so that an addition need not wait for the one before
  hn::Vec<decltype(d)> sum[kSums];
  for (auto& one : sum) one = hn::Zero(d);
  int64_t c = 0;
  for (; c + kSums * lanes <= columns; c += kSums * lanes) {
    for (int i = 0; i < kSums; ++i) {
      const int64_t at = c + i * lanes;
      sum[i] = hn::MulAdd(hn::LoadU(d, row + at), hn::LoadU(d, x + at), sum[i]);
    }
  }
  for (; c + lanes <= columns; c += lanes) {
    sum[0] = hn::MulAdd(hn::LoadU(d, row + c), hn::LoadU(d, x + c), sum[0]);
  }
  if (c < columns) {
    const auto rest = static_cast<size_t>(columns - c);
    sum[1] = hn::MulAdd(load_first(d, row + c, rest), load_first(d, x + c, rest), sum[1]);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3]))));
}

void RowProduct(const RowMatrix& matrix, const float* x, const float* bias, int64_t begin,
                int64_t end, float* out) {
  for (int64_t i = begin; i < end; ++i) {
    out[i] =
        dot_row(matrix.values + i * matrix.columns, x, matrix.columns) + (bias ? bias[i] : 0.0F);
  }
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
