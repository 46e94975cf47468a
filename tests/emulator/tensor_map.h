// SPDX-License-Identifier: Apache-2.0
// What the copy engine is told of a tensor: in place of the driver's own, which is nobody's
// business.
#pragma once

#include <cstdint>
#include <stdexcept>

namespace fmmformer::emulator {

struct TensorMap {
  static constexpr int kDims = 4, kElementBytes = 2;
  static constexpr uint32_t kPieceBytes = 16, kAligned = 128;  // in shared memory
  static constexpr uint32_t kMark = 0x464d4d41;

  uint32_t mark = kMark;
  uint32_t row_bytes = 0;  // as permuted: 64 or 128
  unsigned char* data = nullptr;
  uint64_t sizes[kDims] = {};
  uint64_t strides[kDims] = {};  // in bytes
  uint32_t box[kDims] = {};

  static const TensorMap& at(const void* address) {
    const auto& map = *static_cast<const TensorMap*>(address);
    if (map.mark != kMark) throw std::runtime_error("not a tensor's map");
    return map;
  }
  int64_t box_bytes() const { return int64_t{box[0]} * box[1] * box[2] * box[3] * kElementBytes; }
  /// Where a byte of a row of 64 or 128 bytes lies, if pieces of sixteen bytes are permuted by the
  /// row.
  static uint32_t permuted(uint32_t address, uint32_t row_bytes) {
    const uint32_t pieces = row_bytes == 128 ? 7 : row_bytes == 64 ? 3 : row_bytes == 32 ? 1 : 0;
    return address ^ (address >> 7 & pieces) << 4;
  }
  /// Calls f with the place in shared memory and in the tensor of every sixteen bytes of a box;
  /// nullptr beyond the tensor.
  template <typename F>
  void each_piece(const int32_t (&first)[kDims], uint32_t shared, F&& f) const {
    uint32_t at = shared;
    for (uint32_t i3 = 0; i3 < box[3]; ++i3) {
      for (uint32_t i2 = 0; i2 < box[2]; ++i2) {
        for (uint32_t i1 = 0; i1 < box[1]; ++i1) {
          for (uint32_t i0 = 0; i0 < box[0]; i0 += kPieceBytes / kElementBytes) {
            const uint32_t inside[kDims] = {i0, i1, i2, i3};
            constexpr int64_t kNumbers = kPieceBytes / kElementBytes;
            bool within = true;
            int64_t bytes = 0;
            for (int d = 0; d < kDims; ++d) {
              const int64_t index = int64_t{first[d]} + inside[d], more = d == 0 ? kNumbers : 1;
              within &= index >= 0 && index + more <= static_cast<int64_t>(sizes[d]);
              bytes += index * static_cast<int64_t>(strides[d]);
            }
            unsigned char* piece = within ? data + bytes : nullptr;
            f(permuted(at, row_bytes), piece);
            at += kPieceBytes;
          }
        }
      }
    }
  }
};
static_assert(sizeof(TensorMap) <= 128);

}  // namespace fmmformer::emulator
