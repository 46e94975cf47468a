// SPDX-License-Identifier: Apache-2.0
// How the program finds a command, reads its options and reports a mistake in them.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace fmmformer::cli {

/// A command that a signal stopped ends with 128 + the signal's number, as shells have it: 130
/// after Ctrl-C.
enum ExitCode : int { kDone = 0, kFailed = 1, kWrongUse = 2, kStoppedBySignal = 128 };

/// A mistake of the user: exit code 2. Like every error of a command it says what is wrong and
/// leaves the command's name to dispatch(), which puts it in front.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// How a command ended that did not do its work: "fmmformer train: what is wrong", and the exit
/// code.
class CommandError : public std::runtime_error {
 public:
  CommandError(const std::string& text, ExitCode code) : std::runtime_error(text), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

struct CommandLine {
  std::string command;  // "fmmformer bench attention": what help and errors begin with
  std::vector<std::string> arguments;  // what follows it
  std::string program = "fmmformer";   // as it was started: in commands that are to be typed next

  /// As it was typed: for records.
  std::string text() const;
};

struct Command {
  std::string_view name;
  int (*run)(const CommandLine&);
  std::string_view what;
};

/// Runs the command that the first argument names. The table is also the help text, and the source
/// of "did you mean". `about` is what help says first, `example` what it says last. Whatever a
/// command throws comes out as a CommandError that names the command: code 2 for UsageError,
/// std::invalid_argument and c10::ValueError, which are the user's, else 1.
struct CommandTable {
  std::string_view about;
  std::span<const Command> commands;
  std::string_view example;
};
int dispatch(const CommandTable& table, const CommandLine& line);

/// What an exception says, without the stack trace that torch's bring along.
std::string error_text(const std::exception& error);

/// Reads the arguments into what `app`'s options point at. False when --help was asked for and has
/// been printed. Throws UsageError for an option that does not exist (naming the nearest that does)
/// or a value that does not fit.
bool read_options(CLI::App& app, const CommandLine& line);

/// Has read_options() refuse what is no whole number, below `low` or beyond an int64_t.
void require_at_least(CLI::Option* option, int64_t low);

/// The same of a number that need not be whole, but finite.
void require_number_at_least(CLI::Option* option, double low);

/// Throws UsageError when `path`, given by `option` ("--json"), cannot become a file: before the
/// work, rather than after it. An empty path is no file and no mistake.
void check_output_file(std::string_view option, const std::string& path);

/// "; did you mean x?" made of the nearest candidate, or "" when none is near.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace fmmformer::cli
