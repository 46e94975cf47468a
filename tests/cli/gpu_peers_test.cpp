// SPDX-License-Identifier: Apache-2.0
#include "cli/gpu_peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cli/command.h"
#include "core/temporary_folder.h"

namespace fmmformer::cli {
namespace {

namespace fs = std::filesystem;
using testing::IsEmpty;

/// In the project's folder, where the peers' script is found; a program in Python's place answers.
class GpuPeers : public testing::Test {
 protected:
  GpuPeers() { fs::current_path(fs::path(FMMFORMER_CONFIGS).parent_path()); }
  ~GpuPeers() override { fs::current_path(before_); }

  std::string python_that_runs(const std::string& script) {
    const fs::path program = folder_.path() / "python";
    std::ofstream(program) << "#!/bin/sh\n" << script << "\n";
    fs::permissions(program, fs::perms::owner_all);
    return program;
  }

  std::vector<bench::GpuRow> rows_ = {
      {.attention_case = bench::case_named("gpu_copy"), .dtype = c10::kBFloat16},
      {.attention_case = bench::case_named("gpu_copy"), .dtype = c10::kFloat}};

 private:
  TemporaryFolder folder_;
  fs::path before_ = fs::current_path();
};

TEST_F(GpuPeers, AreAddedToTheRowsInHalfPrecision) {
  const std::string python = python_that_runs(
      R"(echo '{"gpu_copy bf16": {"flex": {"graph_ms": [2, 3, 4], "eager_ms": [5], "peak_bytes": 7},
                                  "fla": {"not_run": "not installed"}}}')");
  PythonPeers{.python = python}.add_to(rows_, {});
  ASSERT_EQ(rows_[0].peers.size(), 2);
  EXPECT_EQ(rows_[0].peers[0].why_not, "not installed");
  EXPECT_DOUBLE_EQ(rows_[0].peer("flex")->graph.median, 3e-3);
  EXPECT_THAT(rows_[1].peers, IsEmpty());
}

TEST_F(GpuPeers, WhoseProcessFailsAreNamedAsNotRun) {
  for (const auto* script : {"exit 139", "echo no JSON", "echo '{}'"}) {
    rows_[0].peers.clear();
    PythonPeers{.python = python_that_runs(script)}.add_to(rows_, {});
    ASSERT_EQ(rows_[0].peers.size(), 1) << script;
    EXPECT_FALSE(rows_[0].peers[0].measured) << script;
    EXPECT_EQ(rows_[0].peers[0].why_not, "the process of peers in Python failed") << script;
  }
}

TEST_F(GpuPeers, ThatCannotBeFoundAreAnErrorBeforehand) {
  fs::current_path("/");
  EXPECT_THROW(PythonPeers{}.check(), UsageError);
}

}  // namespace
}  // namespace fmmformer::cli
