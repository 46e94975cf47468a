// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/analyze_commands.h"
#include "cli/formatted.h"
#include "fmmformer/core/atomic_file.h"
#include "report/groups.h"
#include "report/record.h"

namespace fmmformer::cli {
namespace {

using Json = nlohmann::ordered_json;
using report::Curve;
using report::CurvePoint;
using report::Record;

struct CurvesOptions {
  std::vector<std::string> runs;
  std::string part = "valid", json;
  bool loss = false;
  int64_t points = 16;
};

const Curve& curve_of(const Record& record, const CurvesOptions& options) {
  return options.part == "train" ? record.train : record.valid;
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json json_of(const Record& record) {
  const auto points = [](const Curve& curve) {
    Json list = Json::array();
    for (const CurvePoint& point : curve) {
      list.push_back(
          {{"step", point.step}, {"loss", number(point.loss)}, {"metric", number(point.metric)}});
    }
    return list;
  };
  return {{"run", record.source.parent_path().string()},
          {"name", record.name},
          {"seed", record.seed ? Json(*record.seed) : Json()},
          {"metric", record.metric.name},
          {"best_metric", number(record.result.best_metric)},
          {"best_step", number(record.result.best_step)},
          {"test_metric", number(record.result.test_metric)},
          {"train", points(record.train)},
          {"valid", points(record.valid)}};
}

std::string shown(const Record& record, double value, bool loss) {
  if (!std::isfinite(value)) return "-";
  if (loss || !record.metric.is_share) return formatted("%.4g", value);
  return formatted("%.2f%%", 100 * value);
}

/// A line a step that any of these runs has, thinned to as many as were asked for.
void print_table(const std::vector<Record>& records, const std::vector<size_t>& runs,
                 const CurvesOptions& options) {
  const auto value = options.loss ? &CurvePoint::loss : &CurvePoint::metric;
  std::vector<const Curve*> curves;
  std::printf("\n%s, %s\n%10s", options.part.c_str(),
              options.loss ? "loss" : records[runs.front()].metric.name.c_str(), "step");
  for (const size_t run : runs) {
    curves.push_back(&curve_of(records[run], options));
    std::printf("%12s", formatted("[%zu]", run + 1).c_str());
  }
  std::printf("\n");
  for (const auto& point : report::thinned(report::spread_curve(curves, value), options.points)) {
    std::printf("%10.0f", point.step);
    for (size_t column = 0; column < runs.size(); ++column) {
      const auto own = report::spread_curve({&curves[column], 1}, value);
      const auto same = std::ranges::find(own, point.step, &report::SpreadPoint::step);
      std::printf("%12s",
                  same == own.end()
                      ? "-"
                      : shown(records[runs[column]], same->value.mean, options.loss).c_str());
    }
    std::printf("\n");
  }
}

/// A table for each metric: an accuracy says nothing beside a perplexity, nor do their losses.
void print_tables(const std::vector<Record>& records, const CurvesOptions& options) {
  std::vector<std::pair<std::string, std::vector<size_t>>> tables;
  for (size_t run = 0; run < records.size(); ++run) {
    const std::string& metric = records[run].metric.name;
    auto table = std::ranges::find(tables, metric, &decltype(tables)::value_type::first);
    if (table == tables.end()) table = tables.insert(tables.end(), {metric, {}});
    table->second.push_back(run);
  }
  for (const auto& [metric, runs] : tables) print_table(records, runs, options);
}

void print_runs(const std::vector<Record>& records) {
  for (size_t run = 0; run < records.size(); ++run) {
    const Record& record = records[run];
    const auto folder = record.source.parent_path();
    std::printf("[%zu] %s: %s%s: ", run + 1, folder.empty() ? "." : folder.c_str(),
                record.name.c_str(),
                record.seed ? (", seed " + std::to_string(*record.seed)).c_str() : "");
    if (std::isfinite(record.result.best_metric)) {
      std::printf("best %s %s at step %.0f", record.metric.name.c_str(),
                  shown(record, record.result.best_metric, false).c_str(), record.result.best_step);
    } else {
      std::printf("not evaluated yet");
    }
    if (std::isfinite(record.result.test_metric)) {
      std::printf(", test %s", shown(record, record.result.test_metric, false).c_str());
    }
    std::printf("\n");
  }
}

}  // namespace

int run_analyze_curves(const CommandLine& line) {
  CurvesOptions options;
  CLI::App app("Prints how runs learned, side by side; `fmmformer report` draws the same.");
  app.add_option("RUNS", options.runs, "run folders, folders of runs, or record files")->required();
  app.add_option("--part", options.part, "valid (default) or train")
      ->type_name("PART")
      ->check(CLI::IsMember({"valid", "train"}));
  app.add_flag("--loss", options.loss, "the loss rather than the metric");
  require_at_least(
      app.add_option("--points", options.points, "lines of the table, at most (default: 16)")
          ->type_name("N"),
      2);
  app.add_option("--json", options.json, "write all points to this file")->type_name("FILE");
  app.footer("Example:\n  fmmformer analyze curves runs/wikitext2/* --json curves.json");
  if (!read_options(app, line)) return kDone;
  check_output_file("--json", options.json);

  std::vector<Record> records;
  for (const auto& file : report::find_records({options.runs.begin(), options.runs.end()})) {
    Record record = report::read_record(file);
    if (record.kind == report::RecordKind::kTraining) records.push_back(std::move(record));
  }
  if (records.empty()) throw UsageError("none of these records is of training");
  print_runs(records);
  print_tables(records, options);
  if (!options.json.empty()) {
    Json all = Json::array();
    for (const Record& record : records) all.push_back(json_of(record));
    write_file_atomically(options.json, all.dump() + "\n");
  }
  return kDone;
}

}  // namespace fmmformer::cli
