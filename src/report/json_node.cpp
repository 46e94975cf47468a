// SPDX-License-Identifier: Apache-2.0
#include "report/json_node.h"

#include <cmath>
#include <stdexcept>

namespace fmmformer::report {

using Json = JsonNode::Json;

void JsonNode::fail(std::string_view wanted) const {
  std::string shown =
      value_ == nullptr ? "missing" : value_->dump(-1, ' ', false, Json::error_handler_t::replace);
  constexpr size_t kLongest = 40;  // enough to recognise the place
  if (shown.size() > kLongest) shown = shown.substr(0, kLongest) + "...";
  throw std::invalid_argument("'" + (where_.empty() ? "the document" : where_) + "' should be " +
                              std::string(wanted) + ", but is " + shown);
}

JsonNode JsonNode::operator[](std::string_view name) const {
  std::string where = where_.empty() ? std::string(name) : where_ + "." + std::string(name);
  if (empty()) return {nullptr, std::move(where)};
  if (!value_->is_object()) fail("an object");
  const auto found = value_->find(std::string(name));
  return {found == value_->end() ? nullptr : &*found, std::move(where)};
}

std::vector<JsonNode> JsonNode::elements() const {
  std::vector<JsonNode> nodes;
  if (empty()) return nodes;
  if (!value_->is_array()) fail("an array");
  nodes.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i) {
    nodes.push_back({&(*value_)[i], where_ + "[" + std::to_string(i) + "]"});
  }
  return nodes;
}

std::vector<std::pair<std::string, JsonNode>> JsonNode::members() const {
  std::vector<std::pair<std::string, JsonNode>> nodes;
  if (empty()) return nodes;
  if (!value_->is_object()) fail("an object");
  for (const auto& [name, value] : value_->items()) {
    nodes.emplace_back(name, JsonNode(&value, where_.empty() ? name : where_ + "." + name));
  }
  return nodes;
}

std::string JsonNode::text(std::string fallback) const {
  if (empty()) return fallback;
  if (!value_->is_string()) fail("a text");
  return value_->get<std::string>();
}

double JsonNode::number(double fallback) const {
  if (empty()) return fallback;
  if (!value_->is_number()) fail("a number");
  return value_->get<double>();
}

int64_t JsonNode::integer(int64_t fallback) const {
  if (empty()) return fallback;
  // 1e6 and 3.0 are whole too, however they were written; beyond 2^53 a double would not tell.
  constexpr double kLargest = 9007199254740992.0;
  if (value_->is_number_integer()) return value_->get<int64_t>();
  if (!value_->is_number()) fail("a whole number");
  const double number = value_->get<double>();
  if (std::abs(number) > kLargest || number != std::floor(number)) fail("a whole number");
  return static_cast<int64_t>(number);
}

bool JsonNode::flag(bool fallback) const {
  if (empty()) return fallback;
  if (!value_->is_boolean()) fail("true or false");
  return value_->get<bool>();
}

std::string JsonNode::shown() const {
  if (value_ == nullptr) return {};
  if (value_->is_string()) return value_->get<std::string>();
  return value_->dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace fmmformer::report
