// SPDX-License-Identifier: Apache-2.0
// Between tensors (any type, any strides, masks, odd lengths) and tiles (Real, dense, zero-padded).
// Everything that makes tensors awkward ends here: the kernels see clean tiles only.
#if defined(FMMFORMER_TILE_IO_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FMMFORMER_TILE_IO_INL_H_
#undef FMMFORMER_TILE_IO_INL_H_
#else
#define FMMFORMER_TILE_IO_INL_H_
#endif

#include <cstring>

#include "attention/cpu/tile.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Which rows of a (batch entry, head) exist and are alive.
struct Rows {
  int64_t batch, head, length;
  const bool* mask;  // of this batch entry, or none

  HWY_INLINE bool live(int64_t row) const {
    return row >= 0 && row < length && (mask == nullptr || mask[row]);
  }
  /// The rows [begin, begin + count) exist and nothing is masked: the common case, asked once.
  HWY_INLINE bool all_live(int64_t begin, int64_t count) const {
    return mask == nullptr && begin >= 0 && begin + count <= length;
  }
};

template <typename Args>
HWY_INLINE Rows rows_of(const Args& args, const Segment& segment) {
  return {segment.batch, segment.head, args.length,
          args.token_mask == nullptr ? nullptr : args.token_mask + segment.batch * args.length};
}

HWY_INLINE float from_bfloat16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// Round to nearest, ties to even; NaN stays a NaN.
HWY_INLINE uint16_t to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return static_cast<uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : rounded);
}

// The last, partial vector goes through a small buffer, so that nothing outside the row is touched.
HWY_INLINE void float_from_half(const hwy::float16_t* from, int64_t count, float* to) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> dh;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    hn::StoreU(hn::PromoteTo(d, hn::LoadU(dh, from + i)), d, to + i);
  if (i == count) return;
  HWY_ALIGN hwy::float16_t tail[kLanes] = {};
  std::memcpy(tail, from + i, (count - i) * sizeof(tail[0]));
  HWY_ALIGN float wide[kLanes];
  hn::Store(hn::PromoteTo(d, hn::Load(dh, tail)), d, wide);
  std::memcpy(to + i, wide, (count - i) * sizeof(float));
}

// Round to nearest, ties to even, without the instruction for it.
HWY_INLINE uint16_t to_float16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00);  // NaN
  if (magnitude >= 0x47800000)
    return static_cast<uint16_t>(sign | 0x7C00);  // 65536 and above: infinity
  if (magnitude >= 0x38800000) {  // a normal fp16: drop 13 bits, rebase the exponent from 127 to 15
    const uint32_t rounded = magnitude + 0xFFF + ((magnitude >> 13) & 1) - (uint32_t{112} << 23);
    return static_cast<uint16_t>(sign | (rounded >> 13));
  }
  // A subnormal fp16 counts steps of 2^-24: adding 1/2 leaves just that count in the low bits,
  // rounded by the adder.
  float shifted;
  std::memcpy(&shifted, &magnitude, sizeof(shifted));
  shifted += 0.5f;
  uint32_t steps;
  std::memcpy(&steps, &shifted, sizeof(steps));
  return static_cast<uint16_t>(sign | (steps - 0x3F000000));
}

HWY_INLINE void half_from_float(const float* from, int64_t count, hwy::float16_t* to) {
  int64_t i = 0;
#if HWY_TARGET == HWY_AVX2 || \
    HWY_TARGET == HWY_AVX3  // Highway's emulation on older ones cuts off instead of rounding
  const hn::ScalableTag<float> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> dh;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  for (; i + kLanes <= count; i += kLanes)
    hn::StoreU(hn::DemoteTo(dh, hn::LoadU(d, from + i)), dh, to + i);
#endif
  for (; i < count; ++i) to[i].bits = to_float16(from[i]);
}

// Rows are short: a call to memcpy for each took a quarter of the whole sweep.
template <typename T>
HWY_INLINE void copy_row(const T* HWY_RESTRICT from, int64_t count, T* HWY_RESTRICT to) {
  const hn::ScalableTag<T> d;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) hn::StoreU(hn::LoadU(d, from + i), d, to + i);
  for (; i < count; ++i) to[i] = from[i];
}
template <typename T>
HWY_INLINE void zero_row(T* row, int64_t begin, int64_t end) {
  const hn::ScalableTag<T> d;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) hn::StoreU(hn::Zero(d), d, row + i);
  for (; i < end; ++i) row[i] = T(0);
}

HWY_INLINE void load_row(Element element, const void* tensor, int64_t offset, int64_t count,
                         float* to) {
  if (element == Element::kFloat32) {
    copy_row(static_cast<const float*>(tensor) + offset, count, to);
  } else if (element == Element::kBFloat16) {
    const uint16_t* from = static_cast<const uint16_t*>(tensor) + offset;
    for (int64_t i = 0; i < count; ++i) to[i] = from_bfloat16(from[i]);
  } else {
    float_from_half(static_cast<const hwy::float16_t*>(tensor) + offset, count, to);
  }
}
HWY_INLINE void load_row(Element, const void* tensor, int64_t offset, int64_t count, double* to) {
  copy_row(static_cast<const double*>(tensor) + offset, count, to);
}

HWY_INLINE void store_row(Element element, const float* from, int64_t count, void* tensor,
                          int64_t offset) {
  if (element == Element::kFloat32) {
    copy_row(from, count, static_cast<float*>(tensor) + offset);
  } else if (element == Element::kBFloat16) {
    uint16_t* to = static_cast<uint16_t*>(tensor) + offset;
    for (int64_t i = 0; i < count; ++i) to[i] = to_bfloat16(from[i]);
  } else {
    half_from_float(from, count, static_cast<hwy::float16_t*>(tensor) + offset);
  }
}
HWY_INLINE void store_row(Element, const double* from, int64_t count, void* tensor,
                          int64_t offset) {
  copy_row(from, count, static_cast<double*>(tensor) + offset);
}

HWY_INLINE int64_t row_offset(const View& view, const Rows& rows, int64_t row) {
  return rows.batch * view.batch_stride + row * view.row_stride + rows.head * view.head_stride;
}

template <typename Real>
constexpr Element native_element() {
  return sizeof(Real) == 8 ? Element::kFloat64 : Element::kFloat32;
}

HWY_INLINE int64_t element_size(Element element) {
  return element == Element::kFloat64 ? 8 : element == Element::kFloat32 ? 4 : 2;
}

/// Asks for the rows of the next chunk, a few at a time, while this one is being worked on. A
/// head's rows lie half a page apart in [B, N, H, D]: the hardware does not guess them, and waiting
/// for them took a third of a light sweep. Asking for many at once blocks just as well (a core has
/// some two dozen requests under way at most): several loops over a chunk's rows ask in every turn.
class NextRows {
  // A head's rows of fewer bytes are soon in the cache: asking costs more than it gains.
  static constexpr int64_t kShortSequence = int64_t{32} << 10;
  static constexpr int64_t kMostViews = 8;

 public:
  /// `loops`: how many loops over the chunk's rows will ask(). With fewer of them the last rows are
  /// not asked for, which costs time alone.
  NextRows(Element element, const Rows& rows, int64_t begin, int64_t loops)
      : element_(element), rows_(rows), begin_(begin), loops_(loops) {}

  /// `ahead`: the chunk reads so many rows more than its own.
  NextRows& add(const View& view, int64_t dim, int64_t ahead = 0) {
    return add(element_, view, dim, ahead);
  }
  /// Of a tensor that has other elements than the rest.
  NextRows& add(Element element, const View& view, int64_t dim, int64_t ahead) {
    const int64_t size = element_size(element);
    if (rows_.length * dim * size < kShortSequence) return *this;
    HWY_DASSERT(count_ < kMostViews);
    const int64_t begin = begin_ + ahead;
    views_[count_++] = {
        .data = static_cast<const char*>(view.data) + row_offset(view, rows_, begin) * size,
        .stride = view.row_stride * size,
        .bytes = dim * size,
        .first = -begin,
        .end = rows_.length - begin};
    share_ = (count_ + loops_ - 1) / loops_;
    return *this;
  }
  /// Asks for the next few rows.
  HWY_INLINE void ask() {
    for (int64_t n = 0; n < share_ && row_ < kChunk; ++n) {
      ask_for(views_[view_], row_);
      if (++view_ == count_) view_ = 0, ++row_;
    }
  }
  HWY_INLINE void ask_for_all() {
    while (count_ > 0 && row_ < kChunk) ask();
  }

 private:
  struct RowBytes {
    const char* data;  // of the next chunk's first row
    int64_t stride, bytes;
    int64_t first, end;  // which rows exist, counted from there
  };
  static HWY_INLINE void ask_for(const RowBytes& view, int64_t row) {
    if (row < view.first || row >= view.end) return;
    const char* start = view.data + row * view.stride;
    for (int64_t byte = 0; byte < view.bytes; byte += 64) __builtin_prefetch(start + byte, 0, 2);
  }

  Element element_;
  Rows rows_;
  int64_t begin_, loops_;
  RowBytes views_[kMostViews];
  int64_t count_ = 0, share_ = 0;
  int64_t view_ = 0, row_ = 0;  // whose turn it is
};

/// Rows [begin, begin + count) of a tensor as a tile of row length padded(dim). Rows that are dead
/// or do not exist, and the padding, are zeros, whatever the tensor holds there.
template <typename Real>
HWY_NOINLINE void load_rows(Element element, const View& view, const Rows& rows, int64_t begin,
                            int64_t count, int64_t dim, Real* tile) {
  const int64_t stride = padded(dim);
  int64_t offset = row_offset(view, rows, begin);
  const bool plain = rows.all_live(begin, count) && dim == stride;
  if (plain && element == native_element<Real>()) {  // nothing to look at but the rows themselves
    const Real* from = static_cast<const Real*>(view.data) + offset;
    for (int64_t i = 0; i < count; ++i, from += view.row_stride, tile += stride)
      copy_row(from, stride, tile);
    return;
  }
  for (int64_t i = 0; i < count; ++i, offset += view.row_stride, tile += stride) {
    int64_t filled = 0;
    if (rows.live(begin + i)) {
      load_row(element, view.data, offset, dim, tile);
      filled = dim;
    }
    zero_row(tile, filled, stride);
  }
}

/// The reverse, for rows that exist; dead rows become exact zeros.
template <typename Real>
HWY_NOINLINE void store_rows(Element element, Real* tile, const Rows& rows, int64_t begin,
                             int64_t end, int64_t dim, const View& view) {
  const int64_t stride = padded(dim);
  if (rows.mask == nullptr && dim == stride && element == native_element<Real>()) {
    Real* to = static_cast<Real*>(view.data) + row_offset(view, rows, begin);
    for (int64_t row = begin; row < end; ++row, to += view.row_stride, tile += stride)
      copy_row(tile, stride, to);
    return;
  }
  for (int64_t row = begin; row < end; ++row, tile += stride) {
    if (!rows.live(row)) zero_row(tile, 0, dim);
    store_row(element, tile, dim, view.data, row_offset(view, rows, row));
  }
}

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FMMFORMER_TILE_IO_INL_H_
