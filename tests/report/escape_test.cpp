// SPDX-License-Identifier: Apache-2.0
#include "report/escape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

namespace fmmformer::report {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Escape, MarkupInTextIsShownLiterally) {
  EXPECT_EQ(html_escaped("<b>x</b>"), "&lt;b&gt;x&lt;/b&gt;");
  EXPECT_EQ(html_escaped("a & \"b\" 'c'"), "a &amp; &quot;b&quot; &#39;c&#39;");
  EXPECT_EQ(html_escaped("&lt;"), "&amp;lt;");
  EXPECT_EQ(html_escaped(""), "");
}

TEST(Escape, NothingInTheDataCanEndItsScriptElement) {
  const std::string text =
      script_json({{"a", "</script><script>alert(1)</script>"}, {"<!--", "-->"}, {"c", "&amp;"}});
  EXPECT_THAT(text, Not(HasSubstr("<")));
  EXPECT_THAT(text, Not(HasSubstr(">")));
  EXPECT_THAT(text, Not(HasSubstr("&")));
}

TEST(Escape, LineSeparatorsOfJavaScriptAreEscaped) {
  const std::string text = script_json(
      "a\xe2\x80\xa8"
      "b\xe2\x80\xa9"
      "c");
  EXPECT_EQ(text, R"("a\u2028b\u2029c")");
}

TEST(Escape, EscapedDataReadsBackAsItWas) {
  const json value = {{"k", "</script> <!-- \xe2\x80\xa8 & \" \\ \n \xc3\xa4 \xf0\x9f\x99\x82"},
                      {"n", {1, 2.5, nullptr, true}}};
  EXPECT_EQ(json::parse(script_json(value)), value);
}

TEST(Escape, BytesThatAreNotUtf8AndNumbersThatAreNotFiniteDoNotBreakThePage) {
  const json back = json::parse(script_json({{"text",
                                              "a\xff"
                                              "b"},
                                             {"number", std::nan("")}}));
  EXPECT_EQ(back["text"],
            "a\xef\xbf\xbd"
            "b");
  EXPECT_TRUE(back["number"].is_null());
}

}  // namespace
}  // namespace fmmformer::report
