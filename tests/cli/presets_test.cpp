// SPDX-License-Identifier: Apache-2.0
#include "cli/presets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cli/command.h"
#include "core/temporary_folder.h"

namespace fmmformer::cli {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

// In a folder of its own, with a preset of its own beside those of the project.
class Presets : public testing::Test {
 protected:
  Presets() : before_(fs::current_path()) {
    fs::create_directories(folder_ / "configs/mine");
    std::ofstream(folder_ / "configs/mine/tiny_one.toml") << "name = \"tiny\"\n";
    std::ofstream(folder_ / "configs/mine/notes.txt") << "no preset\n";
    fs::current_path(folder_.path());
  }
  ~Presets() override { fs::current_path(before_); }

  template <typename Work>
  static std::string error_of(const Work& work) {
    try {
      work();
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  }

  TemporaryFolder folder_;
  fs::path before_;
};

TEST_F(Presets, AreTheConfigsHereByFolderAndName) {
  EXPECT_THAT(preset_names(), Contains("mine/tiny_one"));
  EXPECT_THAT(presets_with("tiny"), ElementsAre("mine/tiny_one"));
}

TEST_F(Presets, AFilterThatMatchesNothingIsAnsweredWithTheNearestName) {
  EXPECT_THAT(error_of([] { presets_with("tinny"); }),
              AllOf(HasSubstr("'tinny'"), HasSubstr("did you mean tiny?")));
  EXPECT_THAT(error_of([] { presets_with("mine/tiny_on_"); }), HasSubstr("mine/tiny_one?"));
  EXPECT_THAT(error_of([] { presets_with("qqqqqqqqqq"); }),
              AllOf(HasSubstr("qqqqqqqqqq"), testing::Not(HasSubstr("did you mean"))));
}

TEST_F(Presets, AConfigIsAFileOrAPresetAndAMistakeNamesTheNearest) {
  EXPECT_EQ(find_config("mine/tiny_one"), fs::path("configs/mine/tiny_one.toml"));
  EXPECT_EQ(find_config("configs/mine/tiny_one.toml"), fs::path("configs/mine/tiny_one.toml"));
  fs::create_directories("mine/tiny_one");  // a run of that name does not hide the preset
  EXPECT_EQ(find_config("mine/tiny_one"), fs::path("configs/mine/tiny_one.toml"));
  EXPECT_THAT(error_of([] { find_config("mine/tiny_two"); }), HasSubstr("mine/tiny_one"));
  EXPECT_THAT(error_of([] { find_config("gone.toml"); }), HasSubstr("no such file"));
  EXPECT_THAT(error_of([] { find_config("configs"); }), HasSubstr("without a run"));
  std::ofstream("mine/config.toml") << "name = \"x\"\n";
  EXPECT_THAT(error_of([] { find_config("mine"); }),
              AllOf(HasSubstr("train mine --resume"), HasSubstr("mine/config.toml")));
}

}  // namespace
}  // namespace fmmformer::cli
