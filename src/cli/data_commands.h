// SPDX-License-Identifier: Apache-2.0
// The commands of `fmmformer data`, one file each; data_command.cpp holds their table.
#pragma once

#include <filesystem>
#include <string>

#include "cli/command.h"
#include "tasks/data/data_set.h"

namespace fmmformer::cli {

int run_data_list(const CommandLine& line);
int run_data_import(const CommandLine& line);
int run_data_make(const CommandLine& line);
int run_data_check(const CommandLine& line);
int run_data_show(const CommandLine& line);

/// The data set of a task that the user named; texts to predict are in data_corpus.h. Throws
/// UsageError that lists both when there is none of that name.
const tasks::DataSet& data_set_named(const std::string& task);

/// Where its files are: the folder that the user gave, or, when that is empty, data/TASK as in
/// configs.
std::filesystem::path data_folder(const tasks::DataSet& data, const std::string& given);

/// Its name.
std::string name_of(const tasks::DataSet& data);

}  // namespace fmmformer::cli
