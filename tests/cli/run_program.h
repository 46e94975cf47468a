// SPDX-License-Identifier: Apache-2.0
// Runs the program as a user would, but for one thing: a child is a copy of the test, in which
// torch is loaded already, rather than a process that has to load it. Half a second a run, of
// hundreds. A test that runs the program so must not use torch's threads itself: copies have none
// of them.
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

/// The same, but does not wait: output goes to a file, and the child's number comes back.
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
