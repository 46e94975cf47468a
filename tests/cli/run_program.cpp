// SPDX-License-Identifier: Apache-2.0
#include "cli/run_program.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "cli/program.h"

namespace fmmformer::cli {
namespace {

std::vector<std::string> words_of(const std::string& arguments) {
  std::vector<std::string> words;
  bool quoted = false, in_word = false;
  for (const char c : arguments) {
    if (c == '\'') {
      quoted = !quoted;
    } else if (c == ' ' && !quoted) {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    if (c != '\'') words.back() += c;
  }
  return words;
}

// A child that runs the program and writes to `output`. Nothing thrown leaves it: the child would
// go on with the tests.
pid_t fork_program(const std::vector<std::string>& arguments, int output) noexcept {
  std::cout.flush(), std::cerr.flush(), std::fflush(nullptr);  // or the child would say it again
  const pid_t child = output < 0 ? -1 : fork();
  if (child < 0) std::abort();  // a test that went on would wait for, and kill, others
  if (child > 0) return child;
  dup2(output, STDOUT_FILENO), dup2(output, STDERR_FILENO);
  signal(SIGINT, SIG_DFL);
  // Where a user would be: the program finds its configs here, as it does not lie beside them.
  if (chdir(FMMFORMER_CONFIGS "/..") != 0) _exit(127);
  const int code = run_program(CommandLine{"fmmformer", arguments, FMMFORMER_PROGRAM_PATH});
  std::cout.flush(), std::cerr.flush(), std::fflush(nullptr);
  _exit(code);  // what lies at the end of main() is the test's
}

}  // namespace

Outcome run_program(const std::string& arguments) {
  Outcome outcome;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return outcome;
  const pid_t child = fork_program(words_of(arguments), ends[1]);
  close(ends[1]);
  char buffer[4096];
  for (ssize_t count; (count = read(ends[0], buffer, sizeof buffer)) > 0;)
    outcome.text.append(buffer, static_cast<size_t>(count));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

Outcome run_from_elsewhere(const std::string& arguments) {
  Outcome outcome;
  FILE* pipe = popen(("cd / && '" FMMFORMER_PROGRAM_PATH "' " + arguments + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  while (const size_t count = std::fread(buffer, 1, sizeof buffer, pipe))
    outcome.text.append(buffer, count);
  const int status = pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

pid_t start_program(const std::vector<std::string>& arguments,
                    const std::filesystem::path& output) {
  const int file = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const pid_t child = fork_program(arguments, file);
  close(file);
  return child;
}

void Program::SetUp() {
  folder_ = std::filesystem::temp_directory_path() /
            ("fmmformer_program_test_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder_);
}

void Program::TearDown() { std::filesystem::remove_all(folder_); }

nlohmann::json Program::read_json(const std::string& name) const {
  std::ifstream file(folder_ / name);
  return nlohmann::json::parse(file);
}

std::string Program::path(const std::string& name) const {
  return std::string("'").append((folder_ / name).string()).append("'");
}

}  // namespace fmmformer::cli
