// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "fmmformer/core/fields.h"

namespace fmmformer::tasks {

enum class TaskName { kCopy };

struct CopyConfig {
  int64_t length = 128;
  int64_t symbols = 10;

  static void fields(auto& self, auto&& visit) {
    visit("length", self.length, Range{8, 1 << 20}, "tokens of an example, padding included");
    visit("symbols", self.symbols, Range{1, 1 << 20}, "different symbols, without the separator");
  }
};

/// The table of the named task counts, the others are left alone.
struct TaskConfig {
  TaskName name = TaskName::kCopy;
  CopyConfig copy;

  static void fields(auto& self, auto&& visit) {
    visit("name", self.name, "which task");
    visit("copy", self.copy, "repeat a random sequence after a separator");
  }
};

}  // namespace fmmformer::tasks

template <>
struct fmmformer::EnumTable<fmmformer::tasks::TaskName> {
  static constexpr std::string_view kKind = "task";
  static std::span<const EnumName<tasks::TaskName>> entries() {
    static constexpr std::array<EnumName<tasks::TaskName>, 1> kEntries = {
        {{tasks::TaskName::kCopy, "copy"}}};
    return kEntries;
  }
};
