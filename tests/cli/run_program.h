// SPDX-License-Identifier: Apache-2.0
// Runs the program in a copy of the test (fork), in which torch is loaded already: loading it takes
// half a second, of hundreds of runs. What differs from what a user meets: the file that runs is
// the test, so it works from the project's folder, where the configs are; and nothing runs after
// main(). run_from_elsewhere starts the program itself. A test that uses these must not use torch's
// threads: copies have none of them.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fmmformer::cli {

struct Outcome {
  int exit_code = -1;
  std::string text;  // stdout and stderr
};

/// `arguments` as one would type them: words that spaces part, '..' around what has spaces.
Outcome run_program(const std::string& arguments);

/// Starts the built program itself, from another folder than the project's.
Outcome run_from_elsewhere(const std::string& arguments);

/// As run_program, but does not wait: output goes to a file, and the child's number comes back.
pid_t start_program(const std::vector<std::string>& arguments, const std::filesystem::path& output);

class Program : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  nlohmann::json read_json(const std::string& name) const;
  std::string path(const std::string& name) const;  // quoted

  std::filesystem::path folder_;
};

}  // namespace fmmformer::cli
