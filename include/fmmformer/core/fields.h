// SPDX-License-Identifier: Apache-2.0
// A config is a plain struct with one list of its fields:
//
//   struct NearFieldConfig {
//     int64_t bandwidth = 5;
//     static void fields(auto& self, auto&& visit) {
//       visit("bandwidth", self.bandwidth, Range{.low = 0}, "keeps |i - j| < bandwidth; 0: none");
//     }
//   };
//
// From that list come reading and writing TOML and JSON, range checks, help texts and report rows
// (config.h). A field is a bool, int64_t, double, std::string, an enum with a name table
// (named_enum.h), an std::optional of those (none: the key may be left out), an std::vector of
// those, or another config: a table of its own.
#pragma once

#include <concepts>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "fmmformer/core/named_enum.h"

namespace fmmformer {

/// What a number may be, ends included; of a vector, each of its elements.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();

  bool contains(double value) const { return low <= value && value <= high; }
  /// "1..8", "at least 1", "at most 8", "any number".
  std::string text() const;
};

/// A struct with a list of fields.
struct AnyVisitor {
  void operator()(std::string_view, auto&, std::string_view) const {}
  void operator()(std::string_view, auto&, Range, std::string_view) const {}
};
template <typename T>
concept Config = requires(T& config) {
  T::fields(config, AnyVisitor{});
};

template <typename T>
inline constexpr bool kIsOptional = false;
template <typename T>
inline constexpr bool kIsOptional<std::optional<T>> = true;
template <typename T>
inline constexpr bool kIsVector = false;
template <typename T>
inline constexpr bool kIsVector<std::vector<T>> = true;

/// An enum with a name table.
template <typename T>
concept NamedEnum = std::is_enum_v<T> && requires {
  EnumTable<T>::kKind;
};

}  // namespace fmmformer
