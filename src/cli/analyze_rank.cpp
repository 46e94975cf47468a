// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "analysis/attention_sample.h"
#include "analysis/rank.h"
#include "cli/analysed_run.h"
#include "cli/analyze_commands.h"
#include "cli/live_line.h"

namespace fmmformer::cli {
namespace {

using namespace fmmformer::analysis;
using Json = nlohmann::ordered_json;

struct RankOptions {
  AnalysisOptions common;
  int64_t matrices = 1000;
  int64_t examples = 64;
  std::vector<int64_t> bandwidths = {0, 5, 10, 20};  // as in the paper's figure
  uint64_t seed = 1;
};

void add_options(CLI::App& app, RankOptions& options) {
  add_analysis_options(app, options.common);
  require_at_least(app.add_option("--matrices", options.matrices,
                                  "how many, drawn among all heads of all layers on all examples "
                                  "(default: 1000, or as many as there are)")
                       ->type_name("N"),
                   1);
  require_at_least(app.add_option("--examples", options.examples, "how many examples (default: 64)")
                       ->type_name("N"),
                   1);
  require_at_least(app.add_option("--bandwidths", options.bandwidths,
                                  "bands that are taken away, |i - j| < k (default: 0,5,10,20)")
                       ->delimiter(',')
                       ->type_name("K,K"),
                   0);
  require_at_least(app.add_option("--seed", options.seed, "which matrices are drawn (default: 1)")
                       ->type_name("N"),
                   0);
  app.footer(
      "Singular values are fp64; a rank is how many of them exceed 1e-6 (the paper's figure), and "
      "1e-6 of the\nlargest (its definition). A causal matrix without k diagonals has N - k rows "
      "left, so its rank is at most\nthat, whatever it holds: a rank speaks only where it is well "
      "below its bound.\n\n"
      "Example:\n  fmmformer analyze rank runs/wikitext2/softmax --split test");
}

/// [[rank, how often], ...] by rising rank.
Json histogram_of(const BandRanks& band, int64_t NumericalRank::*kind) {
  std::map<int64_t, int64_t> counts;
  for (const NumericalRank& rank : band.ranks) ++counts[rank.*kind];
  Json pairs = Json::array();
  for (const auto& [rank, count] : counts) pairs.push_back({rank, count});
  return pairs;
}

int64_t quantile(const BandRanks& band, int64_t NumericalRank::*kind, double share) {
  std::vector<int64_t> ranks;
  for (const NumericalRank& rank : band.ranks) ranks.push_back(rank.*kind);
  std::ranges::sort(ranks);
  return ranks[static_cast<size_t>(share * static_cast<double>(ranks.size() - 1) + 0.5)];
}

void print_band(const BandRanks& band, int64_t bound) {
  const auto spread = [&](int64_t NumericalRank::*kind) {
    return std::to_string(quantile(band, kind, 0.5)) + " (" +
           std::to_string(quantile(band, kind, 0.1)) + " .. " +
           std::to_string(quantile(band, kind, 0.9)) + ")";
  };
  std::printf("%9ld %7ld   %-22s %-22s\n", band.bandwidth, bound,
              spread(&NumericalRank::absolute).c_str(), spread(&NumericalRank::relative).c_str());
}

}  // namespace

int run_analyze_rank(const CommandLine& line) {
  RankOptions options;
  CLI::App app(
      "Takes the band out of attention matrices of a trained model and says what rank the rest "
      "has: the paper's reason\nto have a near field beside a far field of low rank.");
  add_options(app, options);
  if (!read_options(app, line)) return kDone;

  const AnalysedRun run(options.common);
  const ModelConfig& model = run.trained().experiment.model;
  const SampleSpace space{run.examples(options.examples), model.layers, model.heads};
  const auto places = random_heads(space, options.matrices, options.seed);
  std::vector<BandRanks> bands;
  for (const int64_t bandwidth : options.bandwidths) bands.push_back({.bandwidth = bandwidth});
  const LiveLine live;
  std::vector<int64_t> lengths;  // padding is left out, so they may differ
  visit_attention(
      run.model(), [&](int64_t example) { return run.inputs(example); }, places,
      [&](const HeadPlace&, const at::Tensor& matrix) {
        add_matrix(matrix, bands);
        lengths.push_back(matrix.size(0));
        live.show("matrix " + std::to_string(bands[0].ranks.size()) + "/" +
                  std::to_string(places.size()));
      });
  live.clear();

  std::ranges::sort(lengths);
  const int64_t length = lengths[lengths.size() / 2];
  const bool causal = model.attention.causal;
  std::printf(
      "%s: %zu attention matrices, %s, of %ld .. %ld tokens; the bound is that of %ld, the median\n"
      "bandwidth   bound   rank above 1e-6        above 1e-6 of the largest\n",
      run.title().c_str(), places.size(), causal ? "causal" : "two-sided", lengths.front(),
      lengths.back(), length);
  Json findings = {{"matrices", places.size()},   {"tokens", length},     {"causal", causal},
                   {"threshold", kRankThreshold}, {"seed", options.seed}, {"bands", Json::array()}};
  for (const BandRanks& band : bands) {
    const int64_t bound = rank_bound(length, band.bandwidth, causal);
    print_band(band, bound);
    findings["bands"].push_back({{"bandwidth", band.bandwidth},
                                 {"bound", bound},
                                 {"absolute", histogram_of(band, &NumericalRank::absolute)},
                                 {"relative", histogram_of(band, &NumericalRank::relative)},
                                 {"singular_values", typical_singular_values(band)}});
  }
  std::printf("median (10%% .. 90%%)\n");
  run.keep("rank", std::move(findings));
  return kDone;
}

}  // namespace fmmformer::cli
