// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_table.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/bench_json.h"
#include "cli/formatted.h"
#include "cli/version.h"

namespace fmmformer::cli {
namespace {

using bench::BenchmarkRow;
using bench::PeerResult;
using bench::Timing;
using nlohmann::json;

std::string time_text(const Timing& timing) {
  const char* format = timing.median < 0.1 ? "%.2f ms +-%.0f%%" : "%.0f ms +-%.0f%%";
  return formatted(format, timing.median * 1e3, timing.spread() * 100);
}

std::string count_text(double count) {
  if (count >= 1e6) return formatted("%.2f M", count / 1e6);
  return formatted("%.0f k", count / 1e3);
}

std::string ratio_text(const BenchmarkRow& row, const std::string& peer) {
  const auto found = std::ranges::find(row.peers, peer, &PeerResult::name);
  if (found == row.peers.end() || !found->timing) return "-";
  return formatted("%.2fx", found->ratio);
}

}  // namespace

std::string table_heading(const std::vector<std::string>& peers) {
  std::string text =
      formatted("%-25s %-29s %-5s %17s %8s %9s %9s %8s", "case", "shape (B x N x H x D)", "dtype",
                "ours", "x floor", "tokens/s", "peak MiB", "product");
  for (const std::string& peer : peers) text += formatted(" %11s", peer.c_str());
  return text;
}

std::string table_row(const BenchmarkRow& row, const std::vector<std::string>& peers) {
  const std::string shape = shape_text(row.attention_case);
  std::string text = formatted(
      "%-25s %-29s %-5s %17s %8.2f %9s %9.1f %7.0f%%", row.attention_case.name.c_str(),
      shape.c_str(), std::string(bench::dtype_name(row.dtype)).c_str(), time_text(row.ours).c_str(),
      row.times_floor(), count_text(row.tokens_per_second()).c_str(),
      static_cast<double>(row.peak_bytes) / kMebibyte, row.product_share() * 100);
  for (const std::string& peer : peers) text += formatted(" %11s", ratio_text(row, peer).c_str());
  return text;
}

std::string variant_heading() {
  return formatted("%-25s %-29s %-5s %17s %13s", "variant", "shape (B x N x H x D)", "dtype",
                   "ours", "x plain case");
}

std::string variant_row(const bench::VariantRow& row) {
  return formatted("%-25s %-29s %-5s %17s %13.2f", row.name.c_str(), row.shape.c_str(),
                   std::string(bench::dtype_name(row.dtype)).c_str(), time_text(row.timing).c_str(),
                   row.times_plain);
}

json row_json(const BenchmarkRow& row) {
  json peers = json::object();
  for (const PeerResult& peer : row.peers) {
    if (!peer.timing) {
      peers[peer.name] = {{"not_run", peer.why_not}};
      continue;
    }
    peers[peer.name] = timing_json(*peer.timing);
    peers[peer.name]["times_ours"] = peer.ratio;
    if (peer.peak_bytes > 0) peers[peer.name]["peak_bytes"] = peer.peak_bytes;
  }
  return {{"case", row.attention_case.name},       {"shape", case_json(row.attention_case)},
          {"dtype", bench::dtype_name(row.dtype)}, {"ours", timing_json(row.ours)},
          {"floor_ms", row.floor * 1e3},           {"times_floor", row.times_floor()},
          {"product_share", row.product_share()},  {"tokens_per_second", row.tokens_per_second()},
          {"peak_bytes", row.peak_bytes},          {"peers", peers}};
}

json to_json(const BenchmarkRecord& record, const json& rows) {
  json variants = json::array();
  for (const bench::VariantRow& row : record.variants) {
    variants.push_back({{"variant", row.name},
                        {"shape", row.shape},
                        {"dtype", bench::dtype_name(row.dtype)},
                        {"ours", timing_json(row.timing)},
                        {"times_plain", row.times_plain}});
  }
  const bench::Machine& machine = record.machine;
  return {{"machine",
           {{"cpu", machine.cpu},
            {"cores", machine.cores},
            {"threads", machine.threads},
            {"instruction_set", machine.instruction_set},
            {"torch", machine.torch_version},
            {"product_rate_gflops", machine.product_rate / 1e9}}},
          {"version", project_version()},
          {"commit", git_commit()},
          {"command", record.command},
          {"pass", record.pass == bench::Pass::kForward ? "forward" : "forward+backward"},
          {"rows", rows},
          {"variants", variants}};
}

}  // namespace fmmformer::cli
