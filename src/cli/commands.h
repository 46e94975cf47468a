// SPDX-License-Identifier: Apache-2.0
// The commands of the program, one file each; program.cpp holds their table.
#pragma once

#include "cli/command.h"

namespace fmmformer::cli {

int run_train(const CommandLine& line);
int run_eval(const CommandLine& line);
int run_predict(const CommandLine& line);
int run_generate(const CommandLine& line);
int run_analyze(const CommandLine& line);
int run_report(const CommandLine& line);
int run_reproduce(const CommandLine& line);
int run_presets(const CommandLine& line);
int run_config(const CommandLine& line);
int run_data(const CommandLine& line);
int run_demo(const CommandLine& line);
int run_verify(const CommandLine& line);
int run_bench(const CommandLine& line);

}  // namespace fmmformer::cli
