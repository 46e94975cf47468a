// SPDX-License-Identifier: Apache-2.0
#include "report/write_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "report/synthetic_runs.h"
#include "report/temporary_folder.h"

namespace fmmformer::report {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class WriteReport : public TemporaryFolderTest {
 protected:
  std::string refusal(const std::vector<fs::path>& paths, const fs::path& output) const {
    return error_of<std::invalid_argument>([&] { write_report(paths, output); });
  }
};

TEST_F(WriteReport, WritesOnePageForAFolderOfRuns) {
  write_synthetic_runs(folder_ / "runs");
  const fs::path output = folder_ / "report.html";
  EXPECT_EQ(write_report({folder_ / "runs"}, output, {.title = "All"}), 8);
  const std::string page = read(output);
  EXPECT_THAT(page, HasSubstr("<title>All</title>"));
  EXPECT_THAT(page, HasSubstr("softmax-s2"));
}

TEST_F(WriteReport, SaysWhatIsMissing) {
  const fs::path output = folder_ / "report.html";
  EXPECT_THAT(refusal({}, output), HasSubstr("no runs to show; give run folders"));
  EXPECT_THAT(refusal({folder_ / "nowhere"}, output), HasSubstr("does not exist"));
  const fs::path run = write("x/record.json", minimal_record("training").dump());
  EXPECT_THAT(refusal({run}, folder_ / "no" / "report.html"),
              AllOf(HasSubstr("does not exist"), HasSubstr("mkdir -p")));
  EXPECT_THAT(refusal({run}, folder_), HasSubstr("is a folder"));
  EXPECT_THAT(refusal({run}, ""), HasSubstr("no output file"));
  EXPECT_FALSE(fs::exists(output));
}

TEST_F(WriteReport, LeavesTheOldPageAloneWhenARecordIsBroken) {
  const fs::path output = write("report.html", "old");
  const fs::path run = write("x/record.json", "{");
  EXPECT_THAT(refusal({run}, output), AllOf(HasSubstr("x/record.json"), HasSubstr("not JSON")));
  EXPECT_EQ(read(output), "old");
}

}  // namespace
}  // namespace fmmformer::report
