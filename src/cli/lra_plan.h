// SPDX-License-Identifier: Apache-2.0
// Which runs `reproduce lra` makes, and where they lie.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "report/lra.h"
#include "report/record.h"

namespace fmmformer::cli {

struct LraSelection {
  std::vector<std::string> tasks, rows, recipes;
  std::vector<int64_t> seeds;  // of records: none named means all
  bool tiny = false;
};

struct LraRun {
  report::LraName name;
  int64_t seed = 1;
  std::filesystem::path folder;  // OUT/TASK/ROW.RECIPE/seed-N
};

/// The experiment whose runs stand for this one: itself, or the published recipe where the tuned
/// one is no other.
report::LraName trained_as(const report::LraName& name);

/// Of all configs: text() of those whose runs are another's, and of that other. None where configs
/// are missing or broken: what only shows runs needs no configs.
std::map<std::string, std::string> lra_stand_ins();

/// Every run of the selection that has a config, one for experiments that are trained alike: first
/// all tasks and rows with the first seed, then with the next. Throws UsageError, naming the
/// nearest, for a name that no config has.
std::vector<LraRun> lra_runs(const LraSelection& selection, const std::filesystem::path& out);

/// The records of the selection below OUT, in its order: of run folders, or of what `--keep` made
/// of them. Where an experiment has none, those of the one it is trained as, by its name.
std::vector<report::Record> lra_records(const LraSelection& selection,
                                        const std::filesystem::path& out);

/// Puts a finished run into KEEP/TASK/ROW.RECIPE: model, config and record of the best seed on the
/// validation split, and the records alone of the others in seed-N.
void keep_lra_run(const LraRun& run, const std::filesystem::path& keep);

}  // namespace fmmformer::cli
