// SPDX-License-Identifier: Apache-2.0
// The two triangular solves of a chunk: what each key reads depends on what the keys before it
// wrote. Substitution in blocks of rows: products with the blocks that are done, then row after row
// inside.
#if defined(FMMFORMER_SUBSTITUTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FMMFORMER_SUBSTITUTION_INL_H_
#undef FMMFORMER_SUBSTITUTION_INL_H_
#else
#define FMMFORMER_SUBSTITUTION_INL_H_
#endif

#include "attention/cpu/products-inl.h"
#include "attention/fast_weight/cpu/sweep.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::fast_weight::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace cpu::HWY_NAMESPACE;

inline constexpr int64_t kBlockRows = 8;  // the fewest that a product takes; all stay in registers

/// The two gates of each token of a chunk: u = write v - erase p.
template <typename Real>
struct Gates {
  Real write[kChunk], erase[kChunk];
};

/// retrieved_i += sum_{j < i} lower_ij written_j, written_i = write_i v_i - erase_i retrieved_i.
/// `lower` is [rows, kChunk]; its diagonal and what lies above are not read.
template <typename Real>
HWY_NOINLINE void read_and_write(int64_t rows, int64_t columns, const Real* lower, const Real* v,
                                 const Gates<Real>& gates, Real* retrieved, Real* written) {
  const hn::ScalableTag<Real> d;
  for (int64_t r = 0; r < rows; r += kBlockRows) {
    const Real* block = lower + r * kChunk;
    if (r > 0) {
      product(kBlockRows, columns, r, left_rows(block, kChunk),
              RowTile<const Real>{written, columns},
              RowTile<Real>{retrieved + r * columns, columns}, Into::kAdd);
    }
    for (int64_t c = 0; c < columns; c += hn::Lanes(d)) {
      hn::Vec<decltype(d)> done[kBlockRows];
#pragma GCC unroll 8
      for (int64_t i = 0; i < kBlockRows; ++i) {
        const int64_t at = (r + i) * columns + c;
        auto sum = hn::LoadU(d, retrieved + at);
#pragma GCC unroll 8
        for (int64_t j = 0; j < i; ++j)
          sum = hn::MulAdd(hn::Set(d, block[i * kChunk + r + j]), done[j], sum);
        hn::StoreU(sum, d, retrieved + at);
        done[i] = hn::NegMulAdd(hn::Set(d, gates.erase[r + i]), sum,
                                hn::Mul(hn::Set(d, gates.write[r + i]), hn::LoadU(d, v + at)));
        hn::StoreU(done[i], d, written + at);
      }
    }
  }
}

/// The transposed solve: gradient_i += sum_{j > i} lower_ji erased_j, erased_i = -erase_i
/// gradient_i.
template <typename Real>
HWY_NOINLINE void read_and_write_backward(int64_t rows, int64_t columns, const Real* lower,
                                          const Gates<Real>& gates, Real* gradient, Real* erased) {
  const hn::ScalableTag<Real> d;
  for (int64_t r = rows - kBlockRows; r >= 0; r -= kBlockRows) {
    const int64_t below = r + kBlockRows;
    const Real* block = lower + r * kChunk + r;
    if (below < rows) {
      product(kBlockRows, columns, rows - below,
              left_transposed(lower + below * kChunk + r, kChunk),
              RowTile<const Real>{erased + below * columns, columns},
              RowTile<Real>{gradient + r * columns, columns}, Into::kAdd);
    }
    for (int64_t c = 0; c < columns; c += hn::Lanes(d)) {
      hn::Vec<decltype(d)> done[kBlockRows];
#pragma GCC unroll 8
      for (int64_t i = kBlockRows - 1; i >= 0; --i) {
        const int64_t at = (r + i) * columns + c;
        auto sum = hn::LoadU(d, gradient + at);
#pragma GCC unroll 8
        for (int64_t j = kBlockRows - 1; j > i; --j)
          sum = hn::MulAdd(hn::Set(d, block[j * kChunk + i]), done[j], sum);
        hn::StoreU(sum, d, gradient + at);
        done[i] = hn::Mul(hn::Set(d, -gates.erase[r + i]), sum);
        hn::StoreU(done[i], d, erased + at);
      }
    }
  }
}

}  // namespace fmmformer::fast_weight::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FMMFORMER_SUBSTITUTION_INL_H_
