// SPDX-License-Identifier: Apache-2.0
#include <iostream>

#include "cli/commands.h"
#include "cli/program.h"
#include "cli/version.h"

namespace fmmformer::cli {
namespace {

// The whole dispatch is this table, and it is the --help text.
constexpr Command kCommands[] = {
    {"train", run_train, "fit the model that a config describes"},
    {"eval", run_eval, "score a trained model on a split of its task, or on other files"},
    {"predict", run_predict, "apply a trained model to tokens of your own"},
    {"generate", run_generate, "go on with a text, token by token"},
    {"analyze", run_analyze, "rank, band energy, attention maps and curves of trained models"},
    {"report", run_report, "render runs as one HTML page"},
    {"reproduce", run_reproduce, "a table of the paper: run it, render it beside the paper's"},
    {"presets", run_presets, "list the experiments that ship, and what they reproduce"},
    {"config", run_config, "print a config as the trainer would use it"},
    {"data", run_data, "import, check and look at the data of the tasks"},
    {"demo", run_demo, "three small models, a scaling plot, a report: a few minutes"},
    {"verify", run_verify, "hold every kernel on this machine against the double reference"},
    {"bench", run_bench, "time attention against its peers"},
};
constexpr CommandTable kTable = {
    "FMMformer: near-field and far-field attention in linear time. (--version says which)",
    kCommands, "fmmformer train copy/fmm1_band10_128 --set train.steps=300 --out runs/first"};

int run(const CommandLine& line) {
  if (!line.arguments.empty() && line.arguments.front() == "--version") {
    std::cout << version_text() << "\n";
    return kDone;
  }
  return dispatch(kTable, line);
}

}  // namespace

int run_program(const CommandLine& line) {
  try {
    return run(line);
  } catch (const CommandError& error) {
    std::cerr << error.what() << "\n";
    return error.code();
  }
}

}  // namespace fmmformer::cli
