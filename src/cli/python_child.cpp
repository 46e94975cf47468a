// SPDX-License-Identifier: Apache-2.0
#include "cli/python_child.h"

#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "cli/command.h"

namespace fmmformer::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// `relative` beside or above the program (build/fmmformer lies one folder below the project), or
/// from here.
std::string find_file(const PythonScript& script, const std::string& relative,
                      const std::string& way_out) {
  const fs::path program = fs::read_symlink("/proc/self/exe").parent_path();
  for (const fs::path& folder : {program.parent_path(), program, fs::current_path()}) {
    if (fs::exists(folder / relative)) return (folder / relative).string();
  }
  throw UsageError(script.option + " needs " + relative +
                   ", which is neither above the program nor under this folder; " + way_out);
}

std::string shell_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char letter : text) {
    if (letter == '\'') {
      quoted += "'\\''";
    } else {
      quoted += letter;
    }
  }
  return quoted + "'";
}

/// Interpreter and script, quoted.
std::string command_of(const PythonScript& script) {
  const std::string interpreter =
      script.python.empty() ? find_file(script, ".venv/bin/python",
                                        "run `make` to set it up, or name one with --python")
                            : script.python;
  const std::string path = find_file(script, script.path, "run from the project's folder");
  return shell_quoted(interpreter) + " " + shell_quoted(path);
}

json run_child(const std::string& command) {
  const auto close = [](FILE* pipe) { return pclose(pipe); };
  std::unique_ptr<FILE, decltype(close)> pipe(popen(command.c_str(), "r"), close);
  if (!pipe) throw std::runtime_error("cannot start a child process for Python");
  std::string output;
  char buffer[4096];
  while (const size_t count = fread(buffer, 1, sizeof buffer, pipe.get()))
    output.append(buffer, count);
  if (const int status = pclose(pipe.release()); status != 0) {
    throw std::runtime_error("a child process failed (its messages are above); ran: " + command);
  }
  return json::parse(output);
}

}  // namespace

void check_python(const PythonScript& script) { command_of(script); }

json run_python(const PythonScript& script, const json& request) {
  return run_child(command_of(script) + " " + shell_quoted(request.dump()));
}

}  // namespace fmmformer::cli
