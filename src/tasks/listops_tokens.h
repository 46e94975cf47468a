// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace fmmformer::tasks {

/// ListOps tokens by their number, as data files hold them; 0 is padding, the digits 0 .. 9 are
/// 1 .. 10.
enum ListOpsToken : uint8_t {
  kListOpsDigit0 = 1,
  kListOpsMin = 11,
  kListOpsMax,
  kListOpsMedian,
  kListOpsSumModulo,
  kListOpsClose,
};

/// How they are written.
inline constexpr std::array<std::string_view, kListOpsClose + 1> kListOpsWords = {
    "", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "[MIN", "[MAX", "[MED", "[SM", "]"};

}  // namespace fmmformer::tasks
