// SPDX-License-Identifier: Apache-2.0
#include "bench/attention_cases.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

namespace fmmformer::bench {
namespace {

using Cases = std::vector<AttentionCase>;

constexpr std::array kDtypeNames = {
    std::pair{c10::kDouble, std::string_view("fp64")},
    std::pair{c10::kFloat, std::string_view("fp32")},
    std::pair{c10::kBFloat16, std::string_view("bf16")},
    std::pair{c10::kHalf, std::string_view("fp16")},
};

}  // namespace

bool AttentionCase::has_tag(CaseTag tag) const {
  return std::ranges::find(tags, tag) != tags.end();
}

const std::vector<AttentionCase>& attention_cases() {
  static const Cases cases = make_attention_cases();
  return cases;
}

std::vector<AttentionCase> cases_with_tag(CaseTag tag) {
  Cases chosen;
  for (const AttentionCase& one : attention_cases()) {
    if (one.has_tag(tag)) chosen.push_back(one);
  }
  return chosen;
}

const AttentionCase& case_named(std::string_view name) {
  std::vector<std::string> names;
  for (const AttentionCase& one : attention_cases()) {
    if (one.name == name) return one;
    names.push_back(one.name);
  }
  std::string text = "there is no case '" + std::string(name) + "'";
  std::vector<std::string> longer;
  for (const std::string& candidate : names) {
    if (candidate.find(name) != std::string::npos) longer.push_back(candidate);
  }
  if (!longer.empty()) {
    text += "; did you mean one of " + join_names(longer) + "?";
  } else if (const std::string near = nearest_name(name, names); !near.empty()) {
    text += "; did you mean '" + near + "'?";
  }
  throw std::invalid_argument(text + " (--list shows all)");
}

FmmOptions options_of(const AttentionCase& attention_case) {
  const AttentionCase& c = attention_case;
  return {.window = c.window ? c.window : window_from_bandwidth(c.bandwidth, c.causal),
          .causal = c.causal,
          .feature_maps = c.feature_maps,
          .unit_features = c.unit_features,
          .normaliser = c.normaliser,
          .eps = c.eps,
          .near_scale = c.near_scale,
          .far_scale = c.far_scale,
          .near_dropout = c.near_dropout};
}

std::string shape_text(const AttentionCase& attention_case) {
  const AttentionCase& c = attention_case;
  std::string text = std::to_string(c.batch) + "x" + std::to_string(c.length) + "x" +
                     std::to_string(c.heads) + "x" + std::to_string(c.head_dim);
  if (c.channels() != c.head_dim) text.append(":").append(std::to_string(c.channels()));
  text += c.causal ? " causal " : " two-sided ";
  text += std::to_string(c.feature_maps.size()) + "+";
  if (!c.window) return text + std::to_string(c.bandwidth);
  return text + "(" + std::to_string(c.window->left) + "," + std::to_string(c.window->right) + ")";
}

std::string_view dtype_name(c10::ScalarType dtype) {
  for (const auto& [value, name] : kDtypeNames) {
    if (value == dtype) return name;
  }
  return c10::toString(dtype);
}

c10::ScalarType dtype_from_name(std::string_view name) {
  for (const auto& [value, known] : kDtypeNames) {
    if (known == name) return value;
  }
  throw std::invalid_argument("unknown dtype '" + std::string(name) +
                              "'; allowed: fp64, fp32, bf16, fp16");
}

}  // namespace fmmformer::bench
