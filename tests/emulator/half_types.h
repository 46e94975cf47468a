// SPDX-License-Identifier: Apache-2.0
// Numbers of sixteen bits, rounded to the nearest.
#pragma once

#include <bit>
#include <cstdint>

namespace fmmformer::emulator {

struct BFloat16 {
  static float to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); }
  static uint16_t from_float(float x) {
    const auto bits = std::bit_cast<uint32_t>(x);
    if (x != x) return 0x7fff;
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
  }
};
struct Float16 {
  static float to_float(uint16_t bits) { return static_cast<float>(std::bit_cast<_Float16>(bits)); }
  static uint16_t from_float(float x) { return std::bit_cast<uint16_t>(static_cast<_Float16>(x)); }
};

}  // namespace fmmformer::emulator
