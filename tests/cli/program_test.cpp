// SPDX-License-Identifier: Apache-2.0
// The program as a user meets it: its exit codes, and what it writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "cli/run_program.h"

namespace fmmformer::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST_F(Program, SaysItsVersionCommitTorchAndInstructionSet) {
  const Outcome outcome = run_program("--version");
  EXPECT_EQ(outcome.exit_code, 0);
  for (const auto* part : {"fmmformer ", "commit ", "torch "})
    EXPECT_THAT(outcome.text, HasSubstr(part));
}

TEST_F(Program, FindsItsConfigsFromAnyFolderAndEndsAsItShould) {
  const Outcome presets = run_from_elsewhere("presets --json");
  EXPECT_EQ(presets.exit_code, 0) << presets.text;
  EXPECT_THAT(presets.text, HasSubstr("copy/"));
  EXPECT_EQ(run_from_elsewhere("presets --jsn").exit_code, 2);
}

TEST_F(Program, HelpHasAnExampleEverywhere) {
  for (const auto* command :
       {"", "verify", "bench", "bench attention", "bench fast-weight", "bench scaling", "train",
        "eval", "predict", "report", "presets", "config", "data", "demo"}) {
    const Outcome outcome = run_program(std::string(command) + " --help");
    EXPECT_EQ(outcome.exit_code, 0) << command;
    EXPECT_THAT(outcome.text, HasSubstr("Example")) << command;
  }
}

TEST_F(Program, AMistakeExitsWithTwoAndNamesTheRightWord) {
  const std::pair<const char*, const char*> mistakes[] = {
      {"verfy", "verify"},
      {"verify --quik", "--quick"},
      {"verify --case plain_casual", "plain_causal"},
      {"bench atention", "attention"},
      {"bench attention --peers flash", "composite"},
      {"bench attention --dtype int8", "bf16"},
      {"bench attention --lengths 9..1", "9..1"},
      {"bench attention --threads 0", "1"},
      {"bench attention --case wikitxt_r2", "wikitext_r2_band20"},
      {"bench attention --json /no/such/folder/x.json", "/no/such/folder"},
      {"bench scaling --json /no/such/folder/x.json", "/no/such/folder"},
      {"bench scaling --device tpu", "cuda"},
      {"bench scaling --device cuda:99", "leave --device out"},
      {"bench attention --device cuda:99", "leave --device out"},
      {"bench attention --device cuda --forward", "--forward is for the CPU"},
      {"verify --device cuda", "leave --device out"},
      {"verify --filter no_such_case", "--list shows all"},
      {"bench fast-weight --device cuda:99", "leave --device out"},
      {"bench fast-weight --python-peers", "needs --device cuda"},
      {"verify --json /no/such/folder/x.json", "/no/such/folder"},
  };
  for (const auto& [arguments, right] : mistakes) {
    const Outcome outcome = run_program(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_THAT(outcome.text, testing::StartsWith("fmmformer")) << arguments;
    EXPECT_THAT(outcome.text, HasSubstr(right)) << arguments;
    EXPECT_THAT(outcome.text, Not(HasSubstr("frame #"))) << arguments;
  }
}

TEST_F(Program, VerifyPrintsALinePerCaseAndTypeAndWritesTheChecks) {
  const Outcome outcome = run_program("verify --case plain_causal --json " + path("verify.json"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  for (const auto* type : {"fp64", "fp32", "bf16", "fp16"})
    EXPECT_THAT(outcome.text, HasSubstr(type));
  const nlohmann::json record = read_json("verify.json");
  ASSERT_EQ(record["cases"].size(), 4u);
  EXPECT_TRUE(record["cases"][0]["passed"].get<bool>());
  EXPECT_GE(record["cases"][0]["checks"].size(), 6u);
}

TEST_F(Program, BenchListsVariantsToo) {
  EXPECT_THAT(run_program("bench attention --variants --list").text, HasSubstr("dropout"));
  EXPECT_THAT(run_program("bench attention --device cuda --variants --list").text,
              HasSubstr("gpu_medium with a token mask"));
}

TEST_F(Program, BenchTimesACaseBesideItsPeersAndWritesTheRecord) {
  const Outcome outcome =
      run_program("bench attention --quick --case wikitext_r2_band20 --lengths 64,128 --json " +
                  path("bench.json"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("wikitext_r2_band20@128"));
  const nlohmann::json record = read_json("bench.json");
  ASSERT_EQ(record["rows"].size(), 2u);
  for (const auto* peer : {"sdpa", "composite", "dense_near"}) {
    EXPECT_GT(record["rows"][0]["peers"][peer]["median_ms"].get<double>(), 0) << peer;
  }
  EXPECT_GT(record["rows"][0]["peak_bytes"].get<int64_t>(), 0);
}

}  // namespace
}  // namespace fmmformer::cli
