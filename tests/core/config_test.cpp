// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/core/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "temporary_folder.h"

namespace fmmformer {

enum class Colour { kRed, kGreen };
template <>
struct EnumTable<Colour> {
  static constexpr std::string_view kKind = "colour";
  static std::span<const EnumName<Colour>> entries() {
    static constexpr EnumName<Colour> kEntries[] = {{Colour::kRed, "red"},
                                                    {Colour::kGreen, "green"}};
    return kEntries;
  }
};

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Inner {
  int64_t steps = 10;
  double rate = 0.5;
  std::optional<double> scale;
  std::vector<Colour> colours;
  static void fields(auto& self, auto&& visit) {
    visit("steps", self.steps, Range{.low = 1}, "how many");
    visit("rate", self.rate, Range{0, 1}, "how fast");
    visit("scale", self.scale, "none: a default");
    visit("colours", self.colours, "in order");
  }
};

struct Outer {
  std::string name = "a";
  bool quick = false;
  Colour colour = Colour::kRed;
  std::vector<double> numbers = {1, 0.5};
  Inner inner;
  static void fields(auto& self, auto&& visit) {
    visit("name", self.name, "a name");
    visit("quick", self.quick, "or not");
    visit("colour", self.colour, "its colour");
    visit("numbers", self.numbers, "some numbers");
    visit("inner", self.inner, "a table");
  }
};

Outer read(std::string_view text, const std::vector<std::string>& overrides = {}) {
  ConfigValue root = parse_toml(text, "test.toml");
  for (const auto& assignment : overrides) apply_override(root, assignment);
  Outer config;
  read_config(root, config);
  return config;
}

std::string error_of(std::string_view text, const std::vector<std::string>& overrides = {}) {
  try {
    read(text, overrides);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Config, KeysThatAreLeftOutKeepTheirDefaults) {
  const Outer config = read("quick = true\n[inner]\nsteps = 1e3\ncolours = ['green', 'red']\n");
  EXPECT_EQ(config.name, "a");
  EXPECT_TRUE(config.quick);
  EXPECT_EQ(config.inner.steps, 1000);
  EXPECT_FALSE(config.inner.scale);
  EXPECT_THAT(config.inner.colours, ElementsAre(Colour::kGreen, Colour::kRed));
}

TEST(Config, OverridesWinAndNeedNoQuotes) {
  const Outer config = read("[inner]\nsteps = 5\nscale = 2\n",
                            {"inner.steps=7", "name=some text", "inner.colours=red,green",
                             "inner.scale=none", "numbers=[2, 3.5]", "colour=green"});
  EXPECT_EQ(config.inner.steps, 7);
  EXPECT_EQ(config.name, "some text");
  EXPECT_THAT(config.inner.colours, ElementsAre(Colour::kRed, Colour::kGreen));
  EXPECT_FALSE(config.inner.scale);
  EXPECT_THAT(config.numbers, ElementsAre(2, 3.5));
  EXPECT_EQ(config.colour, Colour::kGreen);
}

TEST(Config, ErrorsNameThePlaceTheValueAndTheWayOut) {
  EXPECT_THAT(error_of("name = 'x'\n[inner]\nstpes = 3\n"),
              HasSubstr("test.toml:3: unknown key 'inner.stpes'; did you mean 'inner.steps'?"));
  EXPECT_THAT(error_of("[inner]\nsteps = 0\n"),
              HasSubstr("test.toml:2: inner.steps is 0; allowed: at least 1"));
  EXPECT_THAT(error_of("[inner]\nrate = 'fast'\n"),
              HasSubstr("inner.rate is \"fast\"; wanted: number"));
  EXPECT_THAT(error_of("colour = 'gren'\n"), HasSubstr("did you mean 'green'?"));
  EXPECT_THAT(error_of("a = \n"), HasSubstr("test.toml:1"));
  EXPECT_THAT(error_of("", {"inner.rate=2"}), HasSubstr("inner.rate is 2; allowed: 0..1"));
  EXPECT_THAT(error_of("", {"inner.rate"}), HasSubstr("table.key=value"));
  EXPECT_THAT(error_of("", {"name.first=2"}), HasSubstr("name is {"));
  EXPECT_THROW(read_toml_file("/nowhere/x.toml"), ConfigError);
}

TEST(Config, AnErrorInAnOverrideShowsTheOverrideAndNoLine) {
  EXPECT_EQ(error_of("", {"inner.rate=2"}), "--set inner.rate=2: inner.rate is 2; allowed: 0..1");
  EXPECT_THAT(error_of("", {"inner.stpes=3"}), testing::StartsWith("--set inner.stpes=3: unknown"));
  EXPECT_THAT(error_of("", {"inner={steps=0}"}),
              testing::StartsWith("--set inner={steps=0}: inner.steps is 0"));
  EXPECT_THAT(error_of("", {"numbers=[1, 'x']"}),
              testing::StartsWith("--set numbers=[1, 'x']: numbers[1] is"));
}

TEST(Config, AnEmptyFileIsAllDefaultsAndAFolderIsNoFile) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "empty.toml").close();
  EXPECT_TRUE(read_toml_file(folder.path() / "empty.toml").table().empty());
  EXPECT_THROW(read_toml_file(folder.path()), ConfigError);
  EXPECT_THROW(read_toml_file(folder.path() / "missing.toml"), ConfigError);
}

TEST(Config, WhatIsWrittenReadsBackUnchanged) {
  Outer config;
  config.name = "with \"quotes\"\nand lines";
  config.numbers = {0.1, 1e-300, 3};
  config.inner = {.steps = 3, .rate = 1, .scale = 0.25, .colours = {Colour::kGreen}};
  const std::string text = to_toml(config_value(config));
  Outer again;
  read_config(parse_toml(text, "again"), again);
  EXPECT_EQ(to_toml(config_value(again)), text);
  EXPECT_EQ(again.name, config.name);
  EXPECT_EQ(again.numbers, config.numbers);
  EXPECT_EQ(again.inner.scale, 0.25);
  EXPECT_THAT(to_json(config_value(config), -1), HasSubstr("\"colours\":[\"green\"]"));
}

TEST(Config, FieldsDescribeThemselves) {
  const auto rows = describe_fields<Outer>();
  ASSERT_EQ(rows.size(), 8u);
  EXPECT_EQ(rows[2].path, "colour");
  EXPECT_EQ(rows[2].kind, "one of red, green");
  EXPECT_EQ(rows[4].path, "inner.steps");
  EXPECT_EQ(rows[4].initial, "10");
  EXPECT_EQ(rows[4].allowed, "at least 1");
  EXPECT_EQ(rows[6].initial, "");
}

TEST(Config, RangesOfAProgramsOwnConfigAreChecked) {
  Outer config;
  check_config(config);
  config.inner.rate = 1.5;
  EXPECT_THROW(check_config(config), ConfigError);
}

}  // namespace
}  // namespace fmmformer
