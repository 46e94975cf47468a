// SPDX-License-Identifier: Apache-2.0
// Runs the program as a user would.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace fmmformer::cli {

struct Outcome {
  int exit_code = -1;
  std::string text;  // stdout and stderr
};

inline Outcome run_program(const std::string& arguments) {
  Outcome outcome;
  FILE* pipe =
      popen((std::string("'" FMMFORMER_PROGRAM_PATH "' ") + arguments + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  while (const size_t count = fread(buffer, 1, sizeof buffer, pipe))
    outcome.text.append(buffer, count);
  const int status = pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

class Program : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("fmmformer_program_test_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  nlohmann::json read_json(const std::string& name) const {
    std::ifstream file(folder_ / name);
    return nlohmann::json::parse(file);
  }
  std::string path(const std::string& name) const {
    return std::string("'").append((folder_ / name).string()).append("'");
  }

  std::filesystem::path folder_;
};

}  // namespace fmmformer::cli
