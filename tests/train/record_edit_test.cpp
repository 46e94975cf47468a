// SPDX-License-Identifier: Apache-2.0
#include "train/record_edit.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/temporary_folder.h"
#include "train/run_folder.h"

namespace fmmformer::train {
namespace {

using Json = nlohmann::ordered_json;

TEST(RecordEdit, AddsToWhatIsThere) {
  const TemporaryFolder folder;
  {
    const RunFolder run = RunFolder::create(folder.path());
    run.write_config("name = \"x\"\n");
    run.write_record({{"name", "x"}, {"analysis", {{"rank", 1}}}});
  }
  edit_record(folder.path(), [](Json& record) { record["analysis"]["bands"] = 2; });
  EXPECT_EQ(RunPaths(folder.path()).read_record().dump(),
            R"({"name":"x","analysis":{"rank":1,"bands":2}})");
}

TEST(RecordEdit, RefusesARunThatIsInUseOrHasNoRecord) {
  const TemporaryFolder folder;
  const auto nothing = [](Json&) {};
  EXPECT_THROW(edit_record(folder.path(), nothing), std::invalid_argument);
  {
    const RunFolder run = RunFolder::create(folder.path());
    run.write_config("name = \"x\"\n");
    run.write_record({{"name", "x"}});
    EXPECT_THROW(edit_record(folder.path(), nothing), std::runtime_error);  // in use
  }
  std::filesystem::remove(folder / "record.json");
  std::filesystem::remove(folder / "lock");
  EXPECT_THROW(edit_record(folder.path(), nothing), std::invalid_argument);  // no record
  EXPECT_FALSE(std::filesystem::exists(folder / "lock"));
}

}  // namespace
}  // namespace fmmformer::train
