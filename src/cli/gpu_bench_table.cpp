// SPDX-License-Identifier: Apache-2.0
#include "cli/gpu_bench_table.h"

#include <nlohmann/json.hpp>

#include "cli/bench_json.h"
#include "cli/formatted.h"

namespace fmmformer::cli {
namespace {

using bench::GpuMeasurement;
using bench::GpuPeerResult;
using bench::GpuRow;
using Json = nlohmann::ordered_json;

std::string limit_text(const GpuRow& row) {
  const std::optional<double> limit = row.limit_seconds();
  if (!limit) return "-";
  return formatted("%.3f%s", *limit * 1e3, row.ours.graph.median > *limit ? "!" : " ");
}

std::string memory_text(const GpuRow& row) {
  const std::optional<int64_t> limit = row.limit_bytes();
  const bool over = limit && row.ours.peak_bytes > *limit;
  return formatted("%.1f%s", static_cast<double>(row.ours.peak_bytes) / kMebibyte, over ? "!" : "");
}

std::string shape_of(const GpuRow& row) {
  return row.shape.empty() ? shape_text(row.attention_case) : row.shape;
}

std::string case_text(const GpuRow& row) {
  const std::string shape = shape_of(row);
  const std::string dtype(bench::dtype_name(row.dtype));
  return formatted("%-22s %-30s %-5s", row.attention_case.name.c_str(), shape.c_str(),
                   dtype.c_str());
}

Json measurement_json(const GpuMeasurement& measured) {
  return {{"graph", timing_json(measured.graph)},
          {"eager", timing_json(measured.eager)},
          {"peak_bytes", measured.peak_bytes}};
}

Json peers_json(const std::vector<GpuPeerResult>& peers) {
  Json list = Json::object();
  for (const GpuPeerResult& peer : peers) {
    list[peer.name] =
        peer.measured ? measurement_json(*peer.measured) : Json{{"not_run", peer.why_not}};
  }
  return list;
}

Json row_json(const GpuRow& row) {
  Json json = {{"case", row.attention_case.name},
               {"shape_text", shape_of(row)},
               {"shape", case_json(row.attention_case)},
               {"masked", row.attention_case.mask != bench::MaskPattern::kNone},
               {"near_dropout", row.attention_case.near_dropout},
               {"dtype", bench::dtype_name(row.dtype)},
               {"floor_ms", row.floor * 1e3}};
  if (const auto limit = row.limit_seconds()) json["limit_ms"] = *limit * 1e3;
  if (const auto limit = row.limit_bytes()) json["limit_bytes"] = *limit;
  if (!row.failure.empty()) {
    json["failure"] = row.failure;
    return json;
  }
  json["ours"] = measurement_json(row.ours);
  json["forward"] = timing_json(row.forward);
  json["peers"] = peers_json(row.peers);
  return json;
}

}  // namespace

std::string gpu_heading(const std::vector<std::string>& peers) {
  std::string text =
      formatted("%-22s %-30s %-5s %8s %9s %8s %8s %8s %7s %9s", "case", "shape (B x N x H x D)",
                "dtype", "graph", "limit ", "eager", "forward", "floor", "x floor", "peak MiB");
  for (const std::string& peer : peers) text += formatted(" %11.11s", peer.c_str());
  return text;
}

std::string gpu_row(const GpuRow& row, const std::vector<std::string>& peers) {
  if (!row.failure.empty()) return case_text(row) + " " + row.failure;
  std::string text =
      case_text(row) + formatted(" %8.3f %9s %8.3f %8.3f %8.3f %7.1f %9s",
                                 row.ours.graph.median * 1e3, limit_text(row).c_str(),
                                 row.ours.eager.median * 1e3, row.forward.median * 1e3,
                                 row.floor * 1e3, row.times_floor(), memory_text(row).c_str());
  for (const std::string& name : peers) {
    const GpuMeasurement* peer = row.peer(name);
    text += peer == nullptr ? formatted(" %11s", "-")
                            : formatted(" %10.2fx", peer->graph.median / row.ours.graph.median);
  }
  return text;
}

std::string bar_line(const bench::Bar& bar) {
  return formatted("%-4s %-88s %10s  %s", bar.met ? "ok" : "MISS", bar.what.c_str(),
                   bar.measured.c_str(), bar.wanted.c_str());
}

Json to_json(const GpuBenchmarkRecord& record, const train::RunIdentity& identity) {
  Json timings = Json::array();
  for (const GpuRow& row : record.rows) timings.push_back(row_json(row));
  Json bars = Json::array();
  for (const bench::Bar& bar : record.bars) {
    bars.push_back(
        {{"what", bar.what}, {"measured", bar.measured}, {"wanted", bar.wanted}, {"met", bar.met}});
  }
  return {{"format", "fmmformer-record"},
          {"version", 1},
          {"kind", "gpu"},
          {"name", record.subject + " on " + record.gpu + ", forward + backward"},
          {"created", identity.created},
          {"commit", identity.commit},
          {"command", identity.command},
          {"machine", identity.machine},
          {"versions", identity.versions},
          {"copy_bytes_per_second", record.copy_rate},
          {"timings", timings},
          {"bars", bars}};
}

}  // namespace fmmformer::cli
