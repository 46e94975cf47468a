// SPDX-License-Identifier: Apache-2.0
#include "cli/analyze_commands.h"
#include "cli/commands.h"

namespace fmmformer::cli {
namespace {

constexpr Command kAnalyses[] = {
    {"rank", run_analyze_rank, "singular values and rank of attention without its band"},
    {"bands", run_analyze_bands, "how much of the attention lies near, against the band's width"},
    {"maps", run_analyze_maps, "near and far map of every head on an example"},
    {"curves", run_analyze_curves, "how runs learned, side by side"},
};
constexpr CommandTable kAnalyze = {
    "What trained models attend to: the paper's figures, from runs of your own. Numbers go to the "
    "run's record.json (curves are there already), and `fmmformer report` draws them.",
    kAnalyses, "fmmformer analyze rank runs/wikitext2/softmax"};

}  // namespace

int run_analyze(const CommandLine& line) { return dispatch(kAnalyze, line); }

}  // namespace fmmformer::cli
