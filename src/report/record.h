// SPDX-License-Identifier: Apache-2.0
// record.json: what a run leaves behind for the report, and its only input.
//
//   {"format": "fmmformer-record", "version": 1,
//    "kind": "training" | "scaling" | "gpu",
//    "name": "fmm-s1", "seed": 1, "group": "fmm",   seeds of one group are drawn as one curve; told
//    only where "config" is not that of a training run, with its "train.seed": groups.h
//    "task": "copy 512", "attention": "fmm" | "softmax" | "linear" | "band" | ..., "created":
//    "2026-11-15T18:40:00Z", "status": "running" | "finished" | .., "commit": "3195ab047e",
//    "command": "fmmformer train ...", "machine": "AMD EPYC, 2 cores, ..." or {"cpu": "AMD EPYC",
//    "cores": 2, ...}, "versions": {"fmmformer": "0.1.0", "torch": "2.11.0"}, "config": {any tree},
//
//   training:
//    "parameters": 3163787,
//    "metric": {"name": "accuracy", "higher_is_better": true, "is_share": true},   shares show as %
//    "curves": {"train": [{"step": 10, "loss": 2.4, "metric": 0.1}, ...], "valid": [...]},
//    "result": {"best_metric": 0.99, "best_step": 900, "test_metric": 0.98, "steps": 1000,
//               "seconds": 61.5, "tokens_per_second": 9.1e5, "seconds_per_step": 0.002,
//               "seconds_per_evaluation_batch": 0.0005, "peak_bytes": 123456789},
//    "pictures": {"step": 900, "weights": "best" | "last" | "chosen"},   whose blend and maps
//    "blend": [{"layer": 0, "near": [w per head] or [[w per channel] per head],
//               "far": [the same, per feature map], "feature_maps": ["elu", ...]}, ...],
//    "maps": {"tokens": ["7", ...],
//             "heads": [{"layer": 0, "head": 0, "near": [[row] ...] or {"rows": 64, "columns": 64,
//                        "low": 0, "high": 0.9, "base64": a byte a value}, "far": ..., "blend":
//                        ...}, ...]},
//    "analysis", "samples": see findings.h
//
//   scaling:
//    "series": [{"name": "3 kernels + band 30", "attention": "fmm",
//                "points": [{"length": 512, "seconds": 0.0085, "seconds_low": 0.0084,
//                            "seconds_high": 0.0087, "peak_bytes": 6291456},
//                           {"length": 65536, "failure": "out of memory"}]}, ...],
//    "series_about": "one layer, fp32, ..."                       what a point of the figure is
//
//   gpu: see gpu_record.h; may have the members of scaling too.
//
// Every member but format, version and kind may be missing; a null number is one that was not
// finite.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fmmformer/core/named_enum.h"
#include "report/findings.h"
#include "report/gpu_record.h"
#include "report/unknown.h"

namespace fmmformer::report {

inline constexpr int64_t kRecordVersion = 1;

enum class RecordKind { kTraining, kScaling, kGpu };

/// One moment of training; kUnknown where nothing was recorded.
struct CurvePoint {
  double step = kUnknown;
  double loss = kUnknown;
  double metric = kUnknown;
};
using Curve = std::vector<CurvePoint>;

struct Metric {
  std::string name = "metric";
  bool higher_is_better = true;
  bool is_share = false;  // from 0 to 1, and shown as a percentage
};

/// How training ended.
struct TrainingResult {
  double best_metric = kUnknown;  // on the validation set
  double best_step = kUnknown;
  double test_metric = kUnknown;
  double steps = kUnknown;
  double seconds = kUnknown;
  double tokens_per_second = kUnknown;
  double seconds_per_step = kUnknown;
  double peak_bytes = kUnknown;
};

/// Weights [head][channel] of one field; one channel when the weight is the head's.
using FieldWeights = std::vector<std::vector<double>>;

struct LayerBlend {
  int64_t layer = 0;
  FieldWeights near;
  std::vector<FieldWeights> far;  // per feature map
  std::vector<std::string> feature_maps;
};

/// Row-major; values.size() == rows * columns.
struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<float> values;
};

/// What a query (row) takes from a key (column); a field that the model lacks is absent.
struct HeadMaps {
  int64_t layer = 0;
  int64_t head = 0;
  std::optional<Matrix> near;
  std::optional<Matrix> far;
  std::optional<Matrix> blend;
};

/// Whose weights blend and maps show: those of `step`, the "best" or the "last"; empty where the
/// record does not say.
struct PicturedWeights {
  double step = kUnknown;
  std::string weights;
};

struct AttentionMaps {
  std::vector<std::string> tokens;
  std::vector<HeadMaps> heads;
};

/// Time and memory at one length; `failure` says why there are none.
struct ScalingPoint {
  double length = kUnknown;
  double seconds = kUnknown;
  double seconds_low = kUnknown;
  double seconds_high = kUnknown;
  double peak_bytes = kUnknown;
  std::string failure;
};

struct ScalingSeries {
  std::string name;
  std::string attention;
  std::vector<ScalingPoint> points;  // by growing length
};

using ConfigLine = std::pair<std::string, std::string>;  // "model.heads", "8"

struct Record {
  RecordKind kind = RecordKind::kTraining;
  std::filesystem::path source;
  std::string name;
  std::string group;  // the name, where the record has none
  std::optional<int64_t> seed;
  std::string task;
  std::string attention;
  std::string status;  // "finished", ..; empty where the record does not say
  std::string created;
  std::string commit;
  std::string command;
  std::string machine;
  std::vector<ConfigLine> versions;
  std::vector<ConfigLine> config;
  std::string trained_as;  // the experiment whose run this is, where it stands under another's name
  std::vector<std::string> overrides;  // a.b=c: what the run changed of its preset

  // kTraining
  double parameters = kUnknown;
  Metric metric;
  Curve train;
  Curve valid;
  TrainingResult result;
  PicturedWeights pictures;
  std::vector<LayerBlend> blend;
  AttentionMaps maps;
  Findings findings;

  // kScaling, kGpu
  std::vector<ScalingSeries> series;
  std::string series_about;

  // kGpu
  GpuRecord gpu;
};

/// The record in a parsed file. `source` names it in errors and, where the record has no name of
/// its own, gives it one: that of its folder. Best metric and step come from the curve where the
/// result lacks them. Throws std::invalid_argument naming the file, the member and what was
/// expected.
Record parse_record(const nlohmann::ordered_json& json, const std::filesystem::path& source);

/// Reads one file. Throws std::invalid_argument, naming it and the way out, when it is missing,
/// empty, cut short or of another version.
Record read_record(const std::filesystem::path& file);

/// The record files that `paths` stand for: a file is itself, a run folder its record.json, any
/// other folder all the record.json files below it, by name. A file named twice is taken once.
/// Throws std::invalid_argument for a path that is missing or holds no record.
std::vector<std::filesystem::path> find_records(const std::vector<std::filesystem::path>& paths);

}  // namespace fmmformer::report

namespace fmmformer {

template <>
struct EnumTable<report::RecordKind> {
  static constexpr std::string_view kKind = "kind of record";
  static std::span<const EnumName<report::RecordKind>> entries();
};

}  // namespace fmmformer
