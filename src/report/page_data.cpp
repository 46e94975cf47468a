// SPDX-License-Identifier: Apache-2.0
#include "report/page_data.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "fmmformer/core/base64.h"
#include "report/gpu_data.h"
#include "report/groups.h"
#include "report/lra.h"
#include "report/scaling.h"
#include "report/wikitext.h"

namespace fmmformer::report {
namespace {

using nlohmann::json;

json spread_json(const Spread& spread) {
  if (spread.count == 0) return nullptr;
  return {{"mean", spread.mean},
          {"deviation", spread.deviation},
          {"low", spread.low},
          {"high", spread.high},
          {"count", spread.count}};
}

json lines_json(const std::vector<ConfigLine>& lines) {
  json pairs = json::array();
  for (const auto& [name, value] : lines) pairs.push_back({name, value});
  return pairs;
}

json blend_json(const std::vector<LayerBlend>& layers) {
  json list = json::array();
  for (const LayerBlend& layer : layers) {
    list.push_back({{"layer", layer.layer},
                    {"near", layer.near},
                    {"far", layer.far},
                    {"feature_maps", layer.feature_maps}});
  }
  return list;
}

json maps_json(const AttentionMaps& maps) {
  json heads = json::array();
  for (const HeadMaps& head : maps.heads) {
    json one = {{"layer", head.layer}, {"head", head.head}};
    if (head.near) one["near"] = packed_matrix(*head.near);
    if (head.far) one["far"] = packed_matrix(*head.far);
    if (head.blend) one["blend"] = packed_matrix(*head.blend);
    heads.push_back(std::move(one));
  }
  return {{"tokens", maps.tokens}, {"heads", heads}};
}

json run_json(const Record& record) {
  json run = {{"kind", enum_name(record.kind)},
              {"source", record.source.string()},
              {"name", record.name},
              {"task", record.task},
              {"attention", record.attention},
              {"created", record.created},
              {"commit", record.commit},
              {"command", record.command},
              {"machine", record.machine},
              {"versions", lines_json(record.versions)},
              {"config", lines_json(record.config)},
              {"blend", blend_json(record.blend)},
              {"maps", maps_json(record.maps)},
              {"findings", findings_json(record.findings)}};
  run["pictures"] = record.pictures.weights.empty() ? json(nullptr)
                                                    : json{{"step", record.pictures.step},
                                                           {"weights", record.pictures.weights}};
  run["seed"] = record.seed ? json(*record.seed) : json(nullptr);
  return run;
}

/// [step, mean, low, high, count] a point: short, because there are many.
json curve_json(const Group& group, Curve Record::*curve, double CurvePoint::*value,
                const PageOptions& options) {
  std::vector<const Curve*> curves;
  for (const Record* run : group.runs) curves.push_back(&(run->*curve));
  json points = json::array();
  for (const auto& [step, spread] :
       thinned(spread_curve(curves, value), options.most_curve_points)) {
    points.push_back({step, spread.mean, spread.low, spread.high, spread.count});
  }
  return points;
}

json curves_json(const Group& group, Curve Record::*curve, const PageOptions& options) {
  return {{"loss", curve_json(group, curve, &CurvePoint::loss, options)},
          {"metric", curve_json(group, curve, &CurvePoint::metric, options)}};
}

json results_json(const Group& group) {
  std::vector<double> parameters;
  for (const Record* run : group.runs) parameters.push_back(run->parameters);
  const auto over_runs = [&](double TrainingResult::*value) {
    return spread_json(spread_of(group, value));
  };
  return {{"parameters", spread_json(spread_of(parameters))},
          {"best_metric", over_runs(&TrainingResult::best_metric)},
          {"best_step", over_runs(&TrainingResult::best_step)},
          {"test_metric", over_runs(&TrainingResult::test_metric)},
          {"steps", over_runs(&TrainingResult::steps)},
          {"seconds", over_runs(&TrainingResult::seconds)},
          {"tokens_per_second", over_runs(&TrainingResult::tokens_per_second)},
          {"peak_bytes", over_runs(&TrainingResult::peak_bytes)}};
}

/// Models of Long Range Arena go by row and recipe, so that they have one name, and one colour, on
/// all tasks, and language models of the paper by their name; what else tells groups apart is said
/// only where there are several.
std::string shown_name(const Group& group, const std::vector<Group>& groups) {
  const std::string& name = group.runs.front()->name;
  const auto lra = lra_name(name);
  if (!lra && !wikitext_run(*group.runs.front())) return group.name;
  const auto same = std::ranges::count_if(
      groups, [&](const Group& other) { return other.runs.front()->name == name; });
  const bool detailed = same > 1 && group.name.starts_with(name);
  const std::string shown = lra ? lra->row + "." + lra->recipe : name;
  return shown + (detailed ? group.name.substr(name.size()) : "");
}

json lra_json(const Record& record) {
  const auto name = lra_name(record.name);
  if (!name) return nullptr;
  const auto paper = name->tiny ? std::nullopt : paper_accuracy(name->task, name->row);
  return {{"task", name->task},
          {"row", name->row},
          {"recipe", name->recipe},
          {"paper", paper ? json(*paper / 100) : json(nullptr)}};
}

json wikitext_json(const Record& record) {
  const auto name = wikitext_run(record);
  if (!name) return nullptr;
  const bool is_changed = std::ranges::any_of(
      record.overrides, [](const std::string& one) { return one.starts_with("model."); });
  return {{"corpus", name->corpus}, {"row", name->row}, {"changed", is_changed}};
}

/// The paper's tables of perplexities.
json perplexities_json() {
  json rows = json::array();
  for (const PaperPerplexity& row : kPaperPerplexities) {
    rows.push_back(
        {{"row", row.row}, {"title", row.title}, {"valid", row.valid}, {"test", row.test}});
  }
  return rows;
}

/// "retrieval/linear.tuned": an experiment as the page's table finds its cell.
std::string lra_cell(const std::string& name) {
  const auto lra = lra_name(name);
  return lra ? lra->task + "/" + lra->row + "." + lra->recipe : name;
}

/// What the paper's table has beside its cells.
json lra_table_json(const PageOptions& options) {
  json averages = json::object();
  for (const std::string_view row : kLraRows) {
    averages[std::string(row)] = paper_average(row).value() / 100;
  }
  json stand_ins = json::object();
  for (const auto& [name, other] : options.lra_stand_ins) {
    stand_ins[lra_cell(name)] = lra_cell(other);
  }
  return {
      {"tasks", kLraTasks}, {"rows", kLraRows}, {"averages", averages}, {"stand_ins", stand_ins}};
}

json group_json(const Group& group, const std::vector<Group>& groups,
                const std::vector<Record>& records, const PageOptions& options) {
  const Record& first = *group.runs.front();
  json members = json::array();
  json each = json::array();  // the same results, one seed at a time
  for (const Record* run : group.runs) {
    members.push_back(run - records.data());
    each.push_back(results_json({.name = run->name, .task = run->task, .runs = {run}}));
  }
  return {{"name", shown_name(group, groups)},
          {"task", group.task},
          {"lra", lra_json(first)},
          {"wikitext", wikitext_json(first)},
          {"attention", first.attention},
          {"metric",
           {{"name", first.metric.name},
            {"higher_is_better", first.metric.higher_is_better},
            {"is_share", first.metric.is_share}}},
          {"runs", members},
          {"results", results_json(group)},
          {"each", each},
          {"curves",
           {{"train", curves_json(group, &Record::train, options)},
            {"valid", curves_json(group, &Record::valid, options)}}}};
}

json growth_json(const ScalingSeries& series, double ScalingPoint::*value) {
  const auto growth = growth_of(series, value);
  if (!growth) return nullptr;
  return {{"exponent", growth->exponent}, {"from", growth->from}, {"to", growth->to}};
}

json series_json(const ScalingSeries& series) {
  json points = json::array();
  for (const ScalingPoint& point : series.points) {
    points.push_back({{"length", point.length},
                      {"seconds", point.seconds},
                      {"low", point.seconds_low},
                      {"high", point.seconds_high},
                      {"bytes", point.peak_bytes},
                      {"failure", point.failure}});
  }
  return {{"name", series.name},
          {"attention", series.attention},
          {"points", points},
          {"time_growth", growth_json(series, &ScalingPoint::seconds)},
          {"memory_growth", growth_json(series, &ScalingPoint::peak_bytes)}};
}

json scaling_json(const Record& record, int64_t index) {
  json series = json::array();
  for (const ScalingSeries& one : record.series) series.push_back(series_json(one));
  json savings = json::array();
  for (const Saving& one : fmm_savings(record.series)) {
    savings.push_back({{"fast", one.fast},
                       {"slow", one.slow},
                       {"length", one.length},
                       {"time_ratio", one.time_ratio},
                       {"memory_ratio", one.memory_ratio}});
  }
  return {{"run", index}, {"about", record.series_about}, {"series", series}, {"savings", savings}};
}

}  // namespace

json packed_matrix(const Matrix& matrix) {
  const auto finite = [](float value) { return std::isfinite(value) ? value : 0.0F; };
  float low = 0, high = 0;  // 0 is always in: it means "not attended"
  for (const float value : matrix.values) {
    low = std::min(low, finite(value));
    high = std::max(high, finite(value));
  }
  constexpr double kLevels = 65535;
  const double scale = high > low ? kLevels / (static_cast<double>(high) - low) : 0;
  std::vector<unsigned char> bytes;
  bytes.reserve(matrix.values.size() * 2);
  for (const float value : matrix.values) {
    const auto level =
        static_cast<unsigned>(std::lround((static_cast<double>(finite(value)) - low) * scale));
    bytes.push_back(static_cast<unsigned char>(level & 0xffU));
    bytes.push_back(static_cast<unsigned char>(level >> 8));
  }
  return {{"rows", matrix.rows},
          {"columns", matrix.columns},
          {"low", low},
          {"high", high},
          {"base64", base64_encoded(bytes)}};
}

json page_data(const std::vector<Record>& records, const PageOptions& options) {
  json runs = json::array();
  json scaling = json::array();
  json gpu = json::array();
  for (const Record& record : records) {
    const auto index = static_cast<int64_t>(runs.size());
    if (record.kind == RecordKind::kScaling || !record.series.empty())
      scaling.push_back(scaling_json(record, index));
    if (record.kind == RecordKind::kGpu) {
      gpu.push_back(gpu_json(record.gpu));
      gpu.back()["run"] = index;
    }
    runs.push_back(run_json(record));
  }
  const std::vector<Group> grouped = group_runs(records);
  json groups = json::array();
  for (const Group& group : grouped) {
    groups.push_back(group_json(group, grouped, records, options));
    for (const json& run : groups.back()["runs"]) {
      runs[run.get<size_t>()]["group"] = groups.back()["name"];
    }
  }
  return {{"title", options.title},
          {"written", options.written},
          {"runs", runs},
          {"groups", groups},
          {"scaling", scaling},
          {"gpu", gpu},
          {"lra", lra_table_json(options)},
          {"wikitext", perplexities_json()}};
}

}  // namespace fmmformer::report
