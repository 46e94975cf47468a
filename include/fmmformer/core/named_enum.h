// SPDX-License-Identifier: Apache-2.0
// Enums with names: one table per enum serves the command line, JSON, Python and error texts.
#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace fmmformer {

/// The candidate with the smallest edit distance to `name`, or "" when none is near enough to be
/// what was meant.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

/// "a, b, c": for error texts.
std::string join_names(const std::vector<std::string>& names);

template <typename Enum>
struct EnumName {
  Enum value;
  std::string_view name;
};

/// Specialise for an enum: `static std::span<const EnumName<E>> entries()` and `static constexpr
/// std::string_view kKind`.
template <typename Enum>
struct EnumTable;

template <typename Enum>
std::vector<std::string> enum_names() {
  std::vector<std::string> names;
  for (const auto& entry : EnumTable<Enum>::entries()) names.emplace_back(entry.name);
  return names;
}

template <typename Enum>
std::string_view enum_name(Enum value) {
  for (const auto& entry : EnumTable<Enum>::entries()) {
    if (entry.value == value) return entry.name;
  }
  return "?";
}

/// The enumerator called `name`. Throws std::invalid_argument that lists what is allowed and the
/// nearest right name.
template <typename Enum>
Enum enum_from_name(std::string_view name) {
  for (const auto& entry : EnumTable<Enum>::entries()) {
    if (entry.name == name) return entry.value;
  }
  const std::vector<std::string> names = enum_names<Enum>();
  std::string text = "unknown " + std::string(EnumTable<Enum>::kKind) + " '" + std::string(name) +
                     "'; allowed: " + join_names(names);
  if (const std::string near = nearest_name(name, names); !near.empty()) {
    text += "; did you mean '" + near + "'?";
  }
  throw std::invalid_argument(text);
}

}  // namespace fmmformer
