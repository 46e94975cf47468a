// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "analysis/attention_sample.h"
#include "analysis/band_energy.h"
#include "cli/analysed_run.h"
#include "cli/analyze_commands.h"
#include "cli/live_line.h"

namespace fmmformer::cli {
namespace {

using namespace fmmformer::analysis;
using Json = nlohmann::ordered_json;

/// Means over the heads and examples of a layer.
struct LayerShares {
  std::vector<BandShare> sum;
  int64_t count = 0;

  void add(const std::vector<BandShare>& shares) {
    sum.resize(shares.size());
    for (size_t i = 0; i < shares.size(); ++i) {
      sum[i].mass += shares[i].mass, sum[i].energy += shares[i].energy;
    }
    ++count;
  }
  std::vector<double> mean(double BandShare::*kind) const {
    std::vector<double> means;
    for (const BandShare& one : sum) means.push_back(one.*kind / static_cast<double>(count));
    return means;
  }
};

void print_row(const std::string& head, const std::vector<double>& shares) {
  std::printf("%-9s", head.c_str());
  for (const double share : shares) std::printf("%7.1f", 100 * share);
  std::printf("\n");
}

Json json_of(const LayerShares& shares) {
  return {{"mass", shares.mean(&BandShare::mass)}, {"energy", shares.mean(&BandShare::energy)}};
}

}  // namespace

int run_analyze_bands(const CommandLine& line) {
  AnalysisOptions options;
  int64_t examples = 8;
  CLI::App app(
      "Says how much of a trained model's attention lies in a band around the diagonal, against "
      "the band's width:\nhow wide a near field would have to be.");
  add_analysis_options(app, options);
  require_at_least(
      app.add_option("--examples", examples, "how many examples (default: 8)")->type_name("N"), 1);
  app.footer(
      "Energy is the share of the squared entries (what of the Frobenius norm a band explains), "
      "mass that of the\nentries themselves; means over heads and examples.\n\n"
      "Example:\n  fmmformer analyze bands runs/copy/softmax_128");
  if (!read_options(app, line)) return kDone;

  const AnalysedRun run(options);
  const ModelConfig& model = run.trained().experiment.model;
  const SampleSpace space{run.examples(examples), model.layers, model.heads};
  const auto widths = usual_bandwidths(std::min(options.length, run.task().length()));
  std::vector<LayerShares> layers(static_cast<size_t>(model.layers));
  LayerShares all;
  const LiveLine live;
  visit_attention(
      run.model(), [&](int64_t example) { return run.inputs(example); },
      random_heads(space, space.size(), 0),
      [&](const HeadPlace& place, const at::Tensor& matrix) {
        const auto shares = band_shares(matrix, widths);
        layers[static_cast<size_t>(place.layer)].add(shares);
        all.add(shares);
        live.show("matrix " + std::to_string(all.count) + "/" + std::to_string(space.size()));
      });
  live.clear();

  std::printf(
      "%s: %ld attention matrices; energy inside the band |i - j| < width, in %%\nwidth    ",
      run.title().c_str(), all.count);
  for (const int64_t width : widths) std::printf("%7ld", width);
  std::printf("\n");
  Json findings = {{"matrices", all.count}, {"widths", widths}, {"layers", Json::array()}};
  for (const LayerShares& layer : layers) {
    print_row("layer " + std::to_string(findings["layers"].size() + 1),
              layer.mean(&BandShare::energy));
    findings["layers"].push_back(json_of(layer));
  }
  print_row("all", all.mean(&BandShare::energy));
  print_row("(mass)", all.mean(&BandShare::mass));
  findings["all"] = json_of(all);
  run.keep("bands", std::move(findings));
  return kDone;
}

}  // namespace fmmformer::cli
