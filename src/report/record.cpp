// SPDX-License-Identifier: Apache-2.0
#include "report/record.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <stdexcept>

#include "fmmformer/core/base64.h"
#include "report/json_node.h"

namespace fmmformer {

std::span<const EnumName<report::RecordKind>> EnumTable<report::RecordKind>::entries() {
  static constexpr EnumName<report::RecordKind> kEntries[] = {
      {report::RecordKind::kTraining, "training"},
      {report::RecordKind::kScaling, "scaling"},
      {report::RecordKind::kGpu, "gpu"},
  };
  return kEntries;
}

namespace report {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr std::string_view kFormat = "fmmformer-record";
constexpr std::string_view kFileName = "record.json";

/// Every leaf of a tree under its path: the spelling that --set takes.
void flatten(const JsonNode& node, const std::string& path, std::vector<ConfigLine>& lines) {
  if (!node.is_object()) {
    if (!path.empty()) lines.emplace_back(path, node.shown());
    return;
  }
  const std::string prefix = path.empty() ? "" : path + ".";
  for (const auto& [name, member] : node.members()) {
    std::string member_path = prefix;
    flatten(member, member_path.append(name), lines);
  }
}

std::vector<ConfigLine> flattened(const JsonNode& node) {
  std::vector<ConfigLine> lines;
  if (!node.empty()) flatten(node, "", lines);
  return lines;
}

std::string with_spaces(std::string name) {
  std::ranges::replace(name, '_', ' ');
  return name;
}

/// A machine is told in one text, or in members that are told one after the other.
std::string machine_text(const JsonNode& node) {
  if (node.empty()) return {};
  if (node.is_text()) return node.text();
  std::string text;
  for (const auto& [name, member] : node.members()) {
    if (member.empty()) continue;
    if (!text.empty()) text += ", ";
    // "AMD EPYC 9654, 2 cores"
    text += member.is_text() ? member.text() : member.shown() + " " + with_spaces(name);
  }
  return text;
}

Curve read_curve(const JsonNode& node) {
  Curve curve;
  for (const JsonNode& element : node.elements()) {
    const CurvePoint point{.step = element["step"].number(kUnknown),
                           .loss = element["loss"].number(kUnknown),
                           .metric = element["metric"].number(kUnknown)};
    if (std::isnan(point.step)) element["step"].fail("a number");
    curve.push_back(point);
  }
  std::ranges::stable_sort(curve, {}, &CurvePoint::step);
  return curve;
}

TrainingResult read_result(const JsonNode& node) {
  return {.best_metric = node["best_metric"].number(kUnknown),
          .best_step = node["best_step"].number(kUnknown),
          .test_metric = node["test_metric"].number(kUnknown),
          .steps = node["steps"].number(kUnknown),
          .seconds = node["seconds"].number(kUnknown),
          .tokens_per_second = node["tokens_per_second"].number(kUnknown),
          .seconds_per_step = node["seconds_per_step"].number(kUnknown),
          .peak_bytes = node["peak_bytes"].number(kUnknown)};
}

/// What the result left out and the curves tell.
void complete_result(Record& record) {
  TrainingResult& result = record.result;
  if (std::isnan(result.best_metric) || std::isnan(result.best_step)) {
    CurvePoint best;
    for (const CurvePoint& point : record.valid) {
      const double gain =
          record.metric.higher_is_better ? point.metric - best.metric : best.metric - point.metric;
      if (gain > 0 || (std::isnan(best.metric) && !std::isnan(point.metric))) best = point;
    }
    if (std::isnan(result.best_metric)) result.best_metric = best.metric;
    if (result.best_metric == best.metric) result.best_step = best.step;
  }
  for (const Curve* curve : {&record.train, &record.valid}) {
    if (std::isnan(result.steps) && !curve->empty()) result.steps = curve->back().step;
  }
}

FieldWeights read_field(const JsonNode& node) {
  FieldWeights weights;
  for (const JsonNode& head : node.elements()) {
    std::vector<double>& channels = weights.emplace_back();
    if (!head.is_array()) {
      channels.push_back(head.number(kUnknown));
      continue;
    }
    for (const JsonNode& channel : head.elements()) channels.push_back(channel.number(kUnknown));
  }
  return weights;
}

LayerBlend read_layer_blend(const JsonNode& node, int64_t position) {
  LayerBlend blend{.layer = node["layer"].integer(position), .near = read_field(node["near"])};
  for (const JsonNode& field : node["far"].elements()) blend.far.push_back(read_field(field));
  for (const JsonNode& map : node["feature_maps"].elements()) {
    blend.feature_maps.push_back(map.text());
  }
  return blend;
}

// {"rows", "columns", "low", "high", "base64"}: a byte a value, level n of 255 is
// low + n (high - low) / 255.
Matrix read_packed_matrix(const JsonNode& node) {
  Matrix matrix{.rows = node["rows"].integer(0), .columns = node["columns"].integer(0)};
  const auto levels = base64_decoded(node["base64"].text());
  if (!levels || matrix.rows < 0 || matrix.columns < 0 ||
      std::ssize(*levels) != matrix.rows * matrix.columns) {
    node["base64"].fail("a byte for each of rows x columns values, in base64");
  }
  const double low = node["low"].number(0), high = node["high"].number(1);
  for (const uint8_t level : *levels) {
    matrix.values.push_back(static_cast<float>(low + level * (high - low) / 255));
  }
  return matrix;
}

std::optional<Matrix> read_matrix(const JsonNode& node) {
  if (node.empty()) return std::nullopt;
  if (node.is_object()) return read_packed_matrix(node);
  Matrix matrix;
  for (const JsonNode& row : node.elements()) {
    const auto values = row.elements();
    if (matrix.rows++ == 0) matrix.columns = static_cast<int64_t>(values.size());
    if (static_cast<int64_t>(values.size()) != matrix.columns) {
      row.fail("a row of " + std::to_string(matrix.columns) + " numbers");
    }
    for (const JsonNode& value : values) {
      matrix.values.push_back(static_cast<float>(value.number(kUnknown)));
    }
  }
  if (matrix.values.empty()) return std::nullopt;
  return matrix;
}

AttentionMaps read_maps(const JsonNode& node) {
  AttentionMaps maps;
  for (const JsonNode& token : node["tokens"].elements()) maps.tokens.push_back(token.shown());
  for (const JsonNode& head : node["heads"].elements()) {
    maps.heads.push_back({.layer = head["layer"].integer(0),
                          .head = head["head"].integer(0),
                          .near = read_matrix(head["near"]),
                          .far = read_matrix(head["far"]),
                          .blend = read_matrix(head["blend"])});
  }
  return maps;
}

ScalingSeries read_series(const JsonNode& node) {
  ScalingSeries series{.name = node["name"].text("unnamed"), .attention = node["attention"].text()};
  for (const JsonNode& point : node["points"].elements()) {
    series.points.push_back({.length = point["length"].number(kUnknown),
                             .seconds = point["seconds"].number(kUnknown),
                             .seconds_low = point["seconds_low"].number(kUnknown),
                             .seconds_high = point["seconds_high"].number(kUnknown),
                             .peak_bytes = point["peak_bytes"].number(kUnknown),
                             .failure = point["failure"].text()});
    if (!(series.points.back().length > 0)) point["length"].fail("a number above 0");
  }
  std::ranges::stable_sort(series.points, {}, &ScalingPoint::length);
  return series;
}

void check_version(const JsonNode& root) {
  if (!root.is_object()) root.fail("a record (an object)");
  if (const std::string format = root["format"].text(); format != kFormat) {
    throw std::invalid_argument("its 'format' is '" + format + "', not '" + std::string(kFormat) +
                                "': it is not a record of fmmformer");
  }
  if (root["version"].empty()) root["version"].fail("a whole number");
  if (const int64_t version = root["version"].integer(0); version != kRecordVersion) {
    throw std::invalid_argument(
        "its version is " + std::to_string(version) + ", and this program reads version " +
        std::to_string(kRecordVersion) +
        (version > kRecordVersion ? "; update fmmformer" : "; run it again"));
  }
}

Record read_members(const JsonNode& root, const fs::path& source) {
  check_version(root);
  if (root["kind"].empty()) root["kind"].fail("'training', 'scaling' or 'gpu'");
  Record record{.kind = enum_from_name<RecordKind>(root["kind"].text()), .source = source};
  const std::string folder = fs::absolute(source).parent_path().filename().string();
  record.name = root["name"].text(source.filename() == kFileName ? folder : source.stem().string());
  record.group = root["group"].text(record.name);
  if (!root["seed"].empty()) record.seed = root["seed"].integer(0);
  record.task = root["task"].text();
  record.attention = root["attention"].text();
  record.status = root["status"].text();
  record.created = root["created"].text();
  record.commit = root["commit"].text();
  record.command = root["command"].text();
  for (const JsonNode& one : root["overrides"].elements()) record.overrides.push_back(one.text());
  record.machine = machine_text(root["machine"]);
  record.versions = flattened(root["versions"]);
  record.config = flattened(root["config"]);

  record.parameters = root["parameters"].number(kUnknown);
  record.metric = {.name = root["metric"]["name"].text("metric"),
                   .higher_is_better = root["metric"]["higher_is_better"].flag(true),
                   .is_share = root["metric"]["is_share"].flag(false)};
  record.train = read_curve(root["curves"]["train"]);
  record.valid = read_curve(root["curves"]["valid"]);
  record.result = read_result(root["result"]);
  complete_result(record);
  record.pictures = {.step = root["pictures"]["step"].number(kUnknown),
                     .weights = root["pictures"]["weights"].text()};
  for (const JsonNode& layer : root["blend"].elements()) {
    record.blend.push_back(read_layer_blend(layer, static_cast<int64_t>(record.blend.size())));
  }
  record.maps = read_maps(root["maps"]);
  record.findings = read_findings(root);
  for (const JsonNode& series : root["series"].elements()) {
    record.series.push_back(read_series(series));
  }
  record.series_about = root["series_about"].text();
  if (record.kind == RecordKind::kGpu) record.gpu = read_gpu_record(root);
  return record;
}

[[noreturn]] void fail(const fs::path& file, const std::string& what) {
  throw std::invalid_argument("'" + file.string() + "': " + what);
}

}  // namespace

Record parse_record(const ordered_json& document, const fs::path& source) {
  try {
    return read_members(JsonNode(document), source);
  } catch (const std::invalid_argument& error) {
    fail(source, error.what());
  }
}

Record read_record(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream || fs::is_directory(file)) fail(file, "cannot be read; is the path right?");
  std::ostringstream bytes;
  bytes << stream.rdbuf();
  const std::string text = std::move(bytes).str();
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    fail(file, "is empty; the run may not have finished writing, or the disk was full");
  }
  ordered_json document;
  try {
    document = ordered_json::parse(text);
  } catch (const ordered_json::parse_error& error) {
    fail(file, "is not JSON (at byte " + std::to_string(error.byte) +
                   "); it may be cut short: copy it again, or leave this run out");
  }
  return parse_record(document, file);
}

std::vector<fs::path> find_records(const std::vector<fs::path>& paths) {
  std::vector<fs::path> files;
  std::set<fs::path> seen;
  const auto add = [&](const fs::path& file) {
    if (seen.insert(fs::weakly_canonical(file)).second) files.push_back(file);
  };
  for (const fs::path& path : paths) {
    if (!fs::exists(path)) fail(path, "does not exist; give run folders or record.json files");
    if (!fs::is_directory(path)) {
      add(path);
      continue;
    }
    if (fs::exists(path / kFileName)) {
      add(path / kFileName);
      continue;
    }
    std::vector<fs::path> below;
    for (const auto& entry :
         fs::recursive_directory_iterator(path, fs::directory_options::skip_permission_denied)) {
      if (entry.path().filename() == kFileName) below.push_back(entry.path());
    }
    if (below.empty())
      fail(path, "holds no record.json; train into it first, or give another folder");
    std::ranges::sort(below);
    std::ranges::for_each(below, add);
  }
  return files;
}

}  // namespace report
}  // namespace fmmformer
