// SPDX-License-Identifier: Apache-2.0
#include "cli/commands.h"
#include "cli/data_commands.h"
#include "cli/data_corpus.h"
#include "cli/data_fetch.h"

namespace fmmformer::cli {
namespace {

constexpr Command kDataCommands[] = {
    {"list", run_data_list, "which tasks have data, how much is here, what can be imported"},
    {"fetch", run_data_fetch, "bring public files to this machine"},
    {"import", run_data_import, "turn files that you have into data files"},
    {"make", run_data_make, "generate the data of ListOps and Pathfinder"},
    {"check", run_data_check, "verify data files against their checksums"},
    {"show", run_data_show, "print an example so that a person can read it, or draw it"},
};
constexpr CommandTable kData = {
    "The data of the tasks: each split becomes one compact file, data/TASK/SPLIT.fmmdata (of a "
    "text to predict: .fmmtokens), which training maps into memory.",
    kDataCommands, "fmmformer data import listops lra_release/listops-1000"};

}  // namespace

int run_data(const CommandLine& line) { return dispatch(kData, line); }

const tasks::DataSet& data_set_named(const std::string& task) {
  std::vector<std::string> names;
  for (const tasks::DataSet* data : tasks::data_sets()) {
    if (name_of(*data) == task) return *data;
    names.push_back(name_of(*data));
  }
  for (const Corpus& corpus : corpora()) names.emplace_back(corpus.name);
  throw UsageError("there is no data for '" + task + "'" + did_you_mean(task, names) +
                   " (there is for: " + join_names(names) + ")");
}

std::filesystem::path data_folder(const tasks::DataSet& data, const std::string& given) {
  return given.empty() ? "data/" + name_of(data) : given;
}

std::string name_of(const tasks::DataSet& data) { return std::string(enum_name(data.task)); }

}  // namespace fmmformer::cli
