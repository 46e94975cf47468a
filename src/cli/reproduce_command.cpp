// SPDX-License-Identifier: Apache-2.0
// `reproduce`: tables of the paper, run and rendered.
#include "cli/commands.h"
#include "cli/reproduce_commands.h"

namespace fmmformer::cli {
namespace {

constexpr Command kTables[] = {
    {"lra", run_reproduce_lra, "Long Range Arena: five tasks, five models (Table 1)"},
    {"wikitext2", run_reproduce_wikitext2,
     "the language models of Tables 2 and 3 on WikiText-2: 2,550 steps a model"},
    {"wikitext103", run_reproduce_wikitext103,
     "the language models of Tables 2 and 3 on WikiText-103: 500,000 steps a model"},
};
constexpr CommandTable kReproduce = {
    "Runs a table of the paper and renders it beside the paper's numbers.", kTables,
    "fmmformer reproduce lra --tiny"};

}  // namespace

int run_reproduce(const CommandLine& line) { return dispatch(kReproduce, line); }

}  // namespace fmmformer::cli
