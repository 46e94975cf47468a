// SPDX-License-Identifier: Apache-2.0
// A place in a JSON document that may be empty. Reading a missing member gives the fallback;
// reading one of another type is an error that says where it lies.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fmmformer::report {

class JsonNode {
 public:
  using Json = nlohmann::ordered_json;  // settings are shown in the order of the file

  explicit JsonNode(const Json& value) : value_(&value) {}

  /// The member called `name`; an empty node when there is none.
  JsonNode operator[](std::string_view name) const;
  /// The elements of an array; none when the node is empty.
  std::vector<JsonNode> elements() const;
  /// The members of an object, by name; none when the node is empty.
  std::vector<std::pair<std::string, JsonNode>> members() const;

  bool empty() const { return value_ == nullptr || value_->is_null(); }
  bool is_array() const { return !empty() && value_->is_array(); }
  bool is_object() const { return !empty() && value_->is_object(); }
  bool is_text() const { return !empty() && value_->is_string(); }

  std::string text(std::string fallback = {}) const;
  double number(double fallback) const;
  int64_t integer(int64_t fallback) const;
  bool flag(bool fallback) const;
  /// A text as it is, anything else as compact JSON.
  std::string shown() const;

  [[noreturn]] void fail(std::string_view wanted) const;

 private:
  JsonNode(const Json* value, std::string where) : value_(value), where_(std::move(where)) {}

  const Json* value_;
  std::string where_;  // "curves.train[3].loss"
};

}  // namespace fmmformer::report
