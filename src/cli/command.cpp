// SPDX-License-Identifier: Apache-2.0
#include "cli/command.h"

#include <CLI/CLI.hpp>
#include <iomanip>
#include <iostream>

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
            << table.example << "\n";
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

/// Names the command in front of a mistake that was found deeper down.
int run_named(const Command& command, const CommandLine& line) {
  try {
    return command.run(line);
  } catch (const std::invalid_argument& error) {
    throw UsageError(line.command + ": " + error.what());
  }
}

}  // namespace

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
                                 {line.arguments.begin() + 1, line.arguments.end()}});
    }
    names.emplace_back(command.name);
  }
  throw UsageError(line.command + ": unknown command '" + wanted + "'" +
                   did_you_mean(wanted, names) + " (there are: " + join_names(names) + ")");
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
    throw UsageError(line.command + ": " + error.what() + " ('" + line.command +
                     " --help' explains)");
  }
  if (const std::vector<std::string> unknown = app.remaining(); !unknown.empty()) {
    const std::string name = unknown.front().substr(0, unknown.front().find('='));
    const std::string kind = name.starts_with("-") ? "unknown option " : "unexpected argument ";
    throw UsageError(line.command + ": " + kind + name + did_you_mean(name, option_names(app)) +
                     " ('" + line.command + " --help' lists them)");
  }
  return true;
}

}  // namespace fmmformer::cli
