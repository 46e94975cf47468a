// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/analysed_run.h"
#include "cli/analyze_commands.h"
#include "train/model_pictures.h"

namespace fmmformer::cli {

int run_analyze_maps(const CommandLine& line) {
  AnalysisOptions options;
  int64_t example = 0, cells = 128;
  CLI::App app(
      "Draws the near and far map of every head of a trained model on one example, and its learned "
      "blend weights, for\nthe report. (Training leaves maps of the first example of the valid "
      "split, in 64 cells a side.)");
  add_analysis_options(app, options);
  require_at_least(
      app.add_option("--example", example, "which one of the split (default: 0)")->type_name("N"),
      0);
  require_at_least(app.add_option("--cells", cells,
                                  "a side of a map, at most; longer texts share cells, of which "
                                  "the largest value shows (default: 128)")
                       ->type_name("N"),
                   2);
  app.footer(
      "Example:\n  fmmformer analyze maps runs/wikitext2/fmm1_band5 --example 3 --cells 256");
  if (!read_options(app, line)) return kDone;

  const AnalysedRun run(options);
  if (example >= run.examples(example + 1)) {
    throw UsageError("--example " + std::to_string(example) + ": there are examples 0.." +
                     std::to_string(run.examples(example) - 1));
  }
  auto pictures = train::pictures_of(run.model(), run.task(), run.example(example), run.device(),
                                     {.longest = options.length, .cells = cells});
  std::printf("%s: maps of %zu heads\n", run.title().c_str(), pictures["maps"]["heads"].size());
  pictures["pictures"] = {{"step", run.trained().step},
                          {"weights", options.run.step < 0 ? "best" : "chosen"}};
  run.keep_members(std::move(pictures));
  return kDone;
}

}  // namespace fmmformer::cli
