// SPDX-License-Identifier: Apache-2.0
#include "attention/cpu/targets.h"
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/cpu/dropout_kernel.cpp"
#include "hwy/foreach_target.h"
// clang-format on
#include <algorithm>

#include "attention/philox.h"
#include "hwy/highway.h"
#include "nn/cpu/dropout_kernel.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Words = hn::ScalableTag<uint32_t>;
using Floats = hn::ScalableTag<float>;
using WordVec = hn::Vec<Words>;
using FloatVec = hn::Vec<Floats>;

HWY_INLINE void multiply_wide(WordVec a, WordVec factor, WordVec& low, WordVec& high) {
  const Words d;
  const hn::RepartitionToWide<Words> wide;
  const auto even = hn::MulEven(a, factor);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, a))), factor);
  low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
  high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
}

/// 4 * Lanes words: those of the elements 4 block, 4 block + 1, ...
HWY_INLINE void words_from(const DropoutStream& stream, uint64_t block, uint32_t* words) {
  const Words d;
  const auto first = static_cast<uint32_t>(block);
  WordVec c0 = hn::Iota(d, first);
  // The low half of the block number may wrap within the vector: those lanes carry into the high.
  const WordVec carry = hn::VecFromMask(d, hn::Lt(c0, hn::Set(d, first)));  // all ones = -1
  WordVec c1 = hn::Sub(hn::Set(d, static_cast<uint32_t>(block >> 32)), carry);
  WordVec c2 = hn::Set(d, stream.site), c3 = hn::Set(d, 1u);
  auto key0 = static_cast<uint32_t>(stream.seed), key1 = static_cast<uint32_t>(stream.seed >> 32);
  const WordVec m0 = hn::Set(d, kPhiloxMultiplier0), m1 = hn::Set(d, kPhiloxMultiplier1);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    WordVec low0 = c0, high0 = c0, low1 = c2, high1 = c2;
    multiply_wide(c0, m0, low0, high0);
    multiply_wide(c2, m1, low1, high1);
    c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(d, key0));
    c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(d, key1));
    c1 = low1, c3 = low0;
    key0 += kPhiloxKeyStep0, key1 += kPhiloxKeyStep1;
  }
  hn::StoreInterleaved4(c0, c1, c2, c3, d, words);
}

/// 4 * Lanes entries of the bias for the elements from `first` on, which may lie in several rows.
HWY_INLINE const float* bias_from(const RowBias& bias, int64_t first, int64_t count,
                                  float* scratch) {
  int64_t column = first % bias.columns;
  if (column + count <= bias.columns) return bias.values + column;
  for (int64_t e = 0; e < count; ++e) {
    scratch[e] = bias.values[column];
    if (++column == bias.columns) column = 0;
  }
  return scratch;
}

/// out[e] = combine(x[e] + bias, residual[e], factor): whole vectors, the last by way of a buffer.
template <class Combine>
HWY_INLINE void sweep(const DropoutStream& stream, int64_t begin, int64_t count, const float* x,
                      const RowBias& bias, const float* residual, float* out,
                      const Combine& combine) {
  const Words dw;
  const Floats df;
  const auto lanes = static_cast<int64_t>(hn::Lanes(dw)), step = 4 * lanes;
  HWY_ALIGN uint32_t words[4 * hn::MaxLanes(Words())];
  HWY_ALIGN float scratch[4][4 * hn::MaxLanes(Floats())];
  const bool drops = stream.probability > 0;
  const WordVec threshold = hn::Set(dw, dropout_threshold(stream.probability));
  const FloatVec kept = hn::Set(df, static_cast<float>(1.0 / (1.0 - stream.probability)));
  if (!drops) std::fill_n(words, step, 0u);
  for (int64_t e = 0; e < count; e += step) {
    if (drops) words_from(stream, static_cast<uint64_t>(begin + e) / 4, words);
    const int64_t here = std::min(step, count - e);
    const float *from = x ? x + e : nullptr, *rest = residual ? residual + e : nullptr;
    float* to = out + e;
    if (here < step) {
      if (x) std::copy_n(from, here, scratch[0]), from = scratch[0];
      if (residual) std::copy_n(rest, here, scratch[1]), rest = scratch[1];
      to = scratch[2];
    }
    const float* shift = bias.values ? bias_from(bias, begin + e, step, scratch[3]) : nullptr;
    for (int64_t part = 0; part < step; part += lanes) {
      const auto dropped = hn::Lt(hn::Load(dw, words + part), threshold);
      const FloatVec factor = hn::IfThenZeroElse(hn::RebindMask(df, dropped), kept);
      FloatVec value = from ? hn::LoadU(df, from + part) : hn::Zero(df);
      if (shift) value = hn::Add(value, hn::LoadU(df, shift + part));
      const FloatVec other = rest ? hn::LoadU(df, rest + part) : hn::Zero(df);
      hn::StoreU(combine(value, other, factor), df, to + part);
    }
    if (here < step) std::copy_n(scratch[2], here, out + e);
  }
}

void Factors(const DropoutStream& stream, int64_t begin, int64_t count, float* f) {
  sweep(stream, begin, count, nullptr, {}, nullptr, f,
        [](FloatVec, FloatVec, FloatVec factor) HWY_ATTR { return factor; });
}
void Multiply(const DropoutStream& stream, int64_t begin, int64_t count, const float* x,
              float* out) {
  sweep(stream, begin, count, x, {}, nullptr, out,
        [](FloatVec value, FloatVec, FloatVec factor) HWY_ATTR { return hn::Mul(value, factor); });
}
void AddTo(const DropoutStream& stream, int64_t begin, int64_t count, const float* x,
           const RowBias& bias, const float* residual, float* out) {
  sweep(stream, begin, count, x, bias, residual, out,
        [](FloatVec value, FloatVec other, FloatVec factor)
            HWY_ATTR { return hn::Add(other, hn::Mul(value, factor)); });
}
void Relu(const DropoutStream& stream, int64_t begin, int64_t count, const float* x,
          const RowBias& bias, float* out) {
  sweep(stream, begin, count, x, bias, nullptr, out,
        [](FloatVec value, FloatVec zero, FloatVec factor)
            HWY_ATTR { return hn::Mul(hn::Max(value, zero), factor); });
}

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fmmformer::cpu {

HWY_EXPORT(Factors);
HWY_EXPORT(Multiply);
HWY_EXPORT(AddTo);
HWY_EXPORT(Relu);

void dropout_factors(const DropoutStream& stream, int64_t begin, int64_t count, float* f) {
  HWY_DYNAMIC_DISPATCH(Factors)(stream, begin, count, f);
}
void dropout_multiply(const DropoutStream& stream, int64_t begin, int64_t count, const float* x,
                      float* out) {
  HWY_DYNAMIC_DISPATCH(Multiply)(stream, begin, count, x, out);
}
void dropout_add(const DropoutStream& stream, int64_t begin, int64_t count, const float* x,
                 const RowBias& bias, const float* residual, float* out) {
  HWY_DYNAMIC_DISPATCH(AddTo)(stream, begin, count, x, bias, residual, out);
}
void dropout_relu(const DropoutStream& stream, int64_t begin, int64_t count, const float* x,
                  const RowBias& bias, float* out) {
  HWY_DYNAMIC_DISPATCH(Relu)(stream, begin, count, x, bias, out);
}

}  // namespace fmmformer::cpu
#endif  // HWY_ONCE
