// SPDX-License-Identifier: Apache-2.0
// What every `reproduce` shares: runs that are not finished yet, made one after another until they
// are, or until the time is up; and what is kept of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/device_options.h"
#include "report/record.h"
#include "train/experiment.h"

namespace fmmformer::cli {

struct ReproduceOptions {
  std::vector<int64_t> seeds;  // of records: none named means all
  std::string out, keep;
  double budget = -1;  // minutes; none was given
  std::vector<std::string> overrides;
  bool only_table = false;
  bool quiet = false;
  DeviceOptions device;
};

/// --seeds, --budget, --out, --keep, --set, --table, --quiet, --device, --threads. Returns --keep,
/// for options that exclude it. `runs` and `results`: how help calls the default folders.
CLI::Option* add_reproduce_options(CLI::App& app, ReproduceOptions& options,
                                   const std::string& runs, const std::string& results);

/// A run with what it computes.
struct PlannedRun {
  std::string name;  // of the experiment
  int64_t seed = 1;
  std::filesystem::path folder;
  train::ExperimentConfig experiment;
};

/// Throws ConfigError when its folder holds a run of another experiment.
void check_folder(const PlannedRun& run);

enum class RunProgress { kNew, kBegun, kFinished, kFailed };
RunProgress progress_of(const std::filesystem::path& run);

/// How the work ended.
struct Tally {
  size_t finished = 0, failed = 0;
  bool out_of_time = false;
  int signal = 0;
};

/// Makes what is not finished; `finished` is told of every run that is, those of earlier sittings
/// included.
Tally train_all(const std::vector<PlannedRun>& runs, const ReproduceOptions& options,
                const CommandLine& line, const std::function<void(const PlannedRun&)>& finished);

/// Says what is left to do, on stderr.
int exit_code_of(const Tally& tally, size_t runs, const CommandLine& line);

/// "seed-N", a folder's name.
std::string seed_folder(int64_t seed);

/// The records of a row's runs in `folder`, its own and those of its folders, of the seeds that are
/// named (none: all), by name of the folder.
std::vector<report::Record> records_of_seeds(const std::filesystem::path& folder,
                                             const std::vector<int64_t>& seeds);

/// Puts a finished run into the folder `place`: model, config and record of the best seed on the
/// validation split, and the records alone of the others in seed-N.
void keep_seed(const std::filesystem::path& run, int64_t seed, const std::filesystem::path& place);

/// UsageError, naming the nearest, for one of `given` that is not among `known`.
void check_names(const char* option, const std::vector<std::string>& given,
                 const std::vector<std::string>& known);

}  // namespace fmmformer::cli
