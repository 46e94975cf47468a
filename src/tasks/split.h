// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "fmmformer/core/named_enum.h"

namespace fmmformer::tasks {

enum class Split { kTrain, kValid, kTest };

inline constexpr std::array<Split, 3> kSplits = {Split::kTrain, Split::kValid, Split::kTest};

}  // namespace fmmformer::tasks

template <>
struct fmmformer::EnumTable<fmmformer::tasks::Split> {
  static constexpr std::string_view kKind = "split";
  static std::span<const EnumName<tasks::Split>> entries() {
    static constexpr std::array<EnumName<tasks::Split>, 3> kEntries = {
        {{tasks::Split::kTrain, "train"},
         {tasks::Split::kValid, "valid"},
         {tasks::Split::kTest, "test"}}};
    return kEntries;
  }
};
