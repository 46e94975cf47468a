// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/core/named_enum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace fmmformer {

enum class Fruit { kApple, kBanana, kCherry };

template <>
struct EnumTable<Fruit> {
  static constexpr std::string_view kKind = "fruit";
  static std::span<const EnumName<Fruit>> entries() {
    static constexpr std::array<EnumName<Fruit>, 3> kEntries = {
        {{Fruit::kApple, "apple"}, {Fruit::kBanana, "banana"}, {Fruit::kCherry, "cherry"}}};
    return kEntries;
  }
};

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string error_for(std::string_view name) {
  try {
    enum_from_name<Fruit>(name);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(NamedEnum, NamesAndValuesGoBothWays) {
  for (const Fruit fruit : {Fruit::kApple, Fruit::kBanana, Fruit::kCherry}) {
    EXPECT_EQ(enum_from_name<Fruit>(enum_name(fruit)), fruit);
  }
  EXPECT_EQ(enum_names<Fruit>(), (std::vector<std::string>{"apple", "banana", "cherry"}));
}

TEST(NamedEnum, ValueOutsideTheTableHasAName) { EXPECT_EQ(enum_name(static_cast<Fruit>(7)), "?"); }

TEST(NamedEnum, UnknownNameListsWhatIsAllowedAndTheNearest) {
  EXPECT_THAT(error_for("bananna"),
              AllOf(HasSubstr("unknown fruit 'bananna'"), HasSubstr("apple, banana, cherry"),
                    HasSubstr("did you mean 'banana'?")));
}

TEST(NamedEnum, FarNameGetsNoSuggestion) {
  EXPECT_THAT(error_for("motorcycle"), Not(HasSubstr("did you mean")));
}

TEST(NamedEnum, CaseMatters) {
  EXPECT_THAT(error_for("Apple"), HasSubstr("did you mean 'apple'?"));
}

TEST(NearestName, PrefersTheSmallestEditDistance) {
  EXPECT_EQ(nearest_name("bandwith", {"bandwidth", "band", "width"}), "bandwidth");
  EXPECT_EQ(nearest_name("", {}), "");
  EXPECT_EQ(nearest_name("elu_flp", {"elu", "elu_flip"}), "elu_flip");
  EXPECT_EQ(nearest_name("wikitxt_r2", {"copy_512_r3", "wikitext_r2_band20"}),
            "wikitext_r2_band20");  // cut short, with a slip
  EXPECT_EQ(nearest_name("something", {"copy_512_r3", "wikitext_r2_band20"}), "");
}

TEST(JoinNames, SeparatesByCommas) {
  EXPECT_EQ(join_names({}), "");
  EXPECT_EQ(join_names({"a"}), "a");
  EXPECT_EQ(join_names({"a", "b"}), "a, b");
}

}  // namespace
}  // namespace fmmformer
