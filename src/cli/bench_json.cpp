// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_json.h"

#include <nlohmann/json.hpp>

namespace fmmformer::cli {

using nlohmann::json;

json timing_json(const bench::Timing& timing) {
  return {{"median_ms", timing.median * 1e3},
          {"lower_quartile_ms", timing.lower * 1e3},
          {"upper_quartile_ms", timing.upper * 1e3},
          {"best_ms", timing.best * 1e3},
          {"repeats", timing.repeats}};
}

json case_json(const bench::AttentionCase& attention_case) {
  const bench::AttentionCase& c = attention_case;
  json maps = json::array();
  for (const FeatureMap map : c.feature_maps) maps.push_back(enum_name(map));
  return {{"batch", c.batch},       {"length", c.length},        {"heads", c.heads},
          {"head_dim", c.head_dim}, {"value_dim", c.channels()}, {"bandwidth", c.bandwidth},
          {"causal", c.causal},     {"feature_maps", maps}};
}

}  // namespace fmmformer::cli
