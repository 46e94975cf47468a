// SPDX-License-Identifier: Apache-2.0
// How the program finds a command, reads its options and reports a mistake in them.
#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace fmmformer::cli {

enum ExitCode : int { kDone = 0, kFailed = 1, kWrongUse = 2 };

/// A mistake of the user: shown without its surroundings, exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct CommandLine {
  std::string command;  // "fmmformer bench attention": what help and errors begin with
  std::vector<std::string> arguments;  // what follows it
};

struct Command {
  std::string_view name;
  int (*run)(const CommandLine&);
  std::string_view what;
};

/// Runs the command that the first argument names. The table is also the help text, and the source
/// of "did you mean". `about` is what help says first, `example` what it says last.
struct CommandTable {
  std::string_view about;
  std::span<const Command> commands;
  std::string_view example;
};
int dispatch(const CommandTable& table, const CommandLine& line);

/// Reads the arguments into what `app`'s options point at. False when --help was asked for and has
/// been printed. Throws UsageError for an option that does not exist (naming the nearest that does)
/// or a value that does not fit.
bool read_options(CLI::App& app, const CommandLine& line);

/// ": did you mean 'x'?" made of the nearest candidate, or "" when none is near.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace fmmformer::cli
