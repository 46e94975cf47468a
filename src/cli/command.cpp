// SPDX-License-Identifier: Apache-2.0
#include "cli/command.h"

#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <limits>
#include <sstream>

#include "fmmformer/core/named_enum.h"

namespace fmmformer::cli {
namespace {

bool asks_for_help(std::string_view argument) { return argument == "--help" || argument == "-h"; }

void print_help(const CommandTable& table, const CommandLine& line) {
  std::cout << table.about << "\n\nUsage: " << line.command << " COMMAND [OPTIONS]\n\nCommands:\n";
  for (const Command& command : table.commands) {
    std::cout << "  " << std::left << std::setw(12) << command.name << command.what << "\n";
  }
  std::cout << "\n'" << line.command << " COMMAND --help' explains a command.\n\nExample:\n  "
            << table.example
            << "\n\nExit codes: 0 done, 1 the work failed, 2 the input is wrong, 130 stopped by "
               "Ctrl-C.\n";
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

bool is_users(const std::exception& error) {
  return dynamic_cast<const UsageError*>(&error) != nullptr ||
         dynamic_cast<const std::invalid_argument*>(&error) != nullptr ||
         dynamic_cast<const c10::ValueError*>(&error) != nullptr;
}

/// Names the command in front of what went wrong in it: the one place where that is done.
int run_named(const Command& command, const CommandLine& line) {
  try {
    return command.run(line);
  } catch (const CommandError&) {  // of a command of this command, and named already
    throw;
  } catch (const std::exception& error) {
    throw CommandError(line.command + ": " + error_text(error),
                       is_users(error) ? kWrongUse : kFailed);
  }
}

}  // namespace

std::string error_text(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
}

std::string CommandLine::text() const {
  std::string whole = command;
  for (const std::string& argument : arguments) whole.append(" ").append(argument);
  return whole;
}

void require_at_least(CLI::Option* option, int64_t low) {
  option->check([low](const std::string& given) -> std::string {
    int64_t number = 0;
    errno = 0;  // CLI11 takes a number with too many digits for the largest there is
    const bool is_number = CLI::detail::lexical_cast(given, number);
    const bool too_long = is_number && errno == ERANGE;
    if (is_number && !too_long && number >= low) return "";
    const std::string high =
        too_long ? " and at most " + std::to_string(std::numeric_limits<int64_t>::max()) : "";
    return "got '" + given + "', allowed: a whole number of " + std::to_string(low) + " or more" +
           high;
  });
}

void require_number_at_least(CLI::Option* option, double low) {
  option->check([low](const std::string& given) -> std::string {
    double number = 0;
    const bool is_number = CLI::detail::lexical_cast(given, number) && std::isfinite(number);
    if (is_number && number >= low) return "";
    std::ostringstream text;
    text << "got '" << given << "', allowed: a number of " << low << " or more";
    return text.str();
  });
}

void check_output_file(std::string_view option, const std::string& path) {
  namespace fs = std::filesystem;
  if (path.empty()) return;
  const std::string what = std::string(option) + " '" + path + "': ";
  if (fs::is_directory(path)) throw UsageError(what + "is a folder; give the path of a file");
  const fs::path folder = fs::path(path).parent_path();
  if (!folder.empty() && !fs::is_directory(folder)) {
    throw UsageError(what + "there is no folder '" + folder.string() + "'; create it first");
  }
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string near = nearest_name(name, candidates);
  return near.empty() ? "" : "; did you mean " + near + "?";
}

int dispatch(const CommandTable& table, const CommandLine& line) {
  if (line.arguments.empty() || asks_for_help(line.arguments.front())) {
    print_help(table, line);
    return line.arguments.empty() ? kWrongUse : kDone;
  }
  const std::string& wanted = line.arguments.front();
  std::vector<std::string> names;
  for (const Command& command : table.commands) {
    if (command.name == wanted) {
      return run_named(command, {line.command + " " + wanted,
                                 {line.arguments.begin() + 1, line.arguments.end()},
                                 line.program});
    }
    names.emplace_back(command.name);
  }
  throw CommandError(line.command + ": unknown command '" + wanted + "'" +
                         did_you_mean(wanted, names) + " (there are: " + join_names(names) + ")",
                     kWrongUse);
}

bool read_options(CLI::App& app, const CommandLine& line) {
  app.name(line.command);
  app.allow_extras();  // so that what is unknown can be answered with what is near
  app.get_formatter()->column_width(34);
  // CLI11 takes its arguments from the back.
  std::vector<std::string> arguments(line.arguments.rbegin(), line.arguments.rend());
  try {
    app.parse(arguments);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return false;
  } catch (const CLI::ParseError& error) {
    throw UsageError(std::string(error.what()) + " ('" + line.command + " --help' explains)");
  }
  if (const std::vector<std::string> unknown = app.remaining(); !unknown.empty()) {
    const std::string name = unknown.front().substr(0, unknown.front().find('='));
    const std::string kind = name.starts_with("-") ? "unknown option " : "unexpected argument ";
    throw UsageError(kind + name + did_you_mean(name, option_names(app)) + " ('" + line.command +
                     " --help' lists them)");
  }
  return true;
}

}  // namespace fmmformer::cli
