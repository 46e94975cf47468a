// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_json.h"

#include <nlohmann/json.hpp>

namespace fmmformer::cli {

using nlohmann::json;

namespace {

json map_names(const bench::AttentionCase& c) {
  json maps = json::array();
  for (const FeatureMap map : c.feature_maps) maps.push_back(enum_name(map));
  return maps;
}

}  // namespace

json timing_json(const bench::Timing& timing) {
  return {{"median_ms", timing.median * 1e3},
          {"lower_quartile_ms", timing.lower * 1e3},
          {"upper_quartile_ms", timing.upper * 1e3},
          {"best_ms", timing.best * 1e3},
          {"repeats", timing.repeats}};
}

json case_json(const bench::AttentionCase& attention_case) {
  const bench::AttentionCase& c = attention_case;
  return {{"batch", c.batch},       {"length", c.length},          {"heads", c.heads},
          {"head_dim", c.head_dim}, {"value_dim", c.channels()},   {"bandwidth", c.bandwidth},
          {"causal", c.causal},     {"feature_maps", map_names(c)}};
}

json python_case_json(const bench::AttentionCase& attention_case, c10::ScalarType dtype) {
  const bench::AttentionCase& c = attention_case;
  return {{"name", c.name},
          {"shape", {c.batch, c.length, c.heads, c.head_dim}},
          {"bandwidth", c.bandwidth},
          {"causal", c.causal},
          {"feature_maps", map_names(c)},
          {"dtype", bench::dtype_name(dtype)}};
}

bench::Timing timing_from_json(const json& milliseconds) {
  std::vector<double> seconds;
  for (const json& one : milliseconds) seconds.push_back(one.get<double>() / 1e3);
  return bench::summarise(std::move(seconds));
}

}  // namespace fmmformer::cli
