// SPDX-License-Identifier: Apache-2.0
#include "report/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report/assets.h"
#include "report/page_data.h"
#include "report/synthetic_runs.h"

namespace fmmformer::report {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<Record> study() {
  std::vector<Record> records;
  for (const std::string attention : {"fmm", "linear"}) {
    for (const int seed : {1, 2}) {
      records.push_back(parse_record(synthetic_training(attention, seed), "record.json"));
    }
  }
  records.push_back(parse_record(synthetic_scaling(), "record.json"));
  return records;
}

/// The data that a page carries.
json embedded(const std::string& page) {
  const std::string open = R"(<script id="report-data" type="application/json">)";
  const size_t begin = page.find(open) + open.size();
  return json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

/// 16-bit levels of a packed matrix.
std::vector<double> unpacked(const json& packed) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<unsigned> bytes;
  unsigned bits = 0, held = 0;
  for (const char digit : packed["base64"].get<std::string>()) {
    if (digit == '=') break;
    bits = bits << 6 | static_cast<unsigned>(kDigits.find(digit));
    held += 6;
    if (held < 8) continue;
    held -= 8;
    bytes.push_back(bits >> held & 0xffU);
  }
  const double low = packed["low"], high = packed["high"];
  std::vector<double> values;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    values.push_back(low + (bytes[i] + 256 * bytes[i + 1]) * (high - low) / 65535);
  }
  return values;
}

TEST(Page, IsWholeAndLoadsNothingFromElsewhere) {
  const std::string page = render_page(study(), {.title = "A study"});
  EXPECT_THAT(page, HasSubstr("<title>A study</title>"));
  EXPECT_THAT(page, HasSubstr("Chart.js v3"));
  EXPECT_THAT(page, HasSubstr("MIT License"));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page, Not(HasSubstr("<link")));
  EXPECT_THAT(page, Not(HasSubstr(" src=")));
  EXPECT_EQ(page.find("{{style}}"), std::string::npos);
  EXPECT_EQ(page.find("{{data}}"), std::string::npos);
}

bool safe_in_script(std::string_view script) {
  std::string lower(script);
  std::ranges::transform(lower, lower.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower.find("</script") == std::string::npos && lower.find("<!--") == std::string::npos;
}

TEST(Page, ItsScriptsCannotEndTheirElements) {
  EXPECT_TRUE(safe_in_script(asset::page_js()));
  EXPECT_TRUE(safe_in_script(asset::chart_js()));
  EXPECT_EQ(asset::page_css().find("</style"), std::string_view::npos);
}

TEST(Page, ShowsMarkupInNamesAsText) {
  json value = synthetic_training("linear", 1);
  value["name"] = "<b>x</b>";
  value["task"] = "</script><script>alert(1)</script>";
  const std::string page =
      render_page({parse_record(value, "record.json")}, {.title = "<i>{{data}}</i>"});
  EXPECT_THAT(page, Not(HasSubstr("<b>x</b>")));
  EXPECT_THAT(page, Not(HasSubstr("alert(1)</script>")));
  EXPECT_THAT(page, HasSubstr("<title>&lt;i&gt;{{data}}&lt;/i&gt;</title>"));
  EXPECT_EQ(embedded(page)["runs"][0]["name"], "<b>x</b>");
  EXPECT_EQ(embedded(page)["groups"][0]["task"], "</script><script>alert(1)</script>");
}

TEST(Page, CarriesSeedsAsOneGroupWithTheirSpread) {
  const json data = embedded(render_page(study(), {}));
  ASSERT_EQ(data["groups"].size(), 2U);
  const json& group = data["groups"][0];
  EXPECT_EQ(group["runs"], json({0, 1}));
  const double first = group["each"][0]["best_metric"]["mean"];
  const double second = group["each"][1]["best_metric"]["mean"];
  EXPECT_DOUBLE_EQ(group["results"]["best_metric"]["mean"], (first + second) / 2);
  EXPECT_DOUBLE_EQ(group["results"]["best_metric"]["low"], std::min(first, second));
  EXPECT_EQ(group["curves"]["valid"]["loss"].size(), 20U);
  EXPECT_EQ(group["curves"]["valid"]["loss"][0][4], 2) << "seeds at the first point";
  EXPECT_EQ(data["scaling"][0]["savings"].size(), 2U);
  EXPECT_NEAR(data["scaling"][0]["series"][0]["time_growth"]["exponent"], 2, 0.1);
}

TEST(Page, ModelsOfLongRangeArenaHaveOneNameOnAllTasksAndThePapersNumber) {
  const auto record = [](const std::string& name, const std::string& group) {
    json value = synthetic_training("fmm", 1);
    value["name"] = name, value["group"] = group, value["task"] = name.substr(4, 4);
    return parse_record(value, "record.json");
  };
  const std::string text = "lra/text/fmm2_band5.tuned", image = "lra/image/fmm2_band5.tuned";
  const json data = embedded(
      render_page({record(text, text + " #1"), record(image, image + " #2"),
                   record(image, image + " train.steps=3 #4"), record("copy/x", "copy/x #5")},
                  {}));
  const json& groups = data["groups"];
  EXPECT_EQ(groups[0]["name"], "fmm2_band5.tuned");
  EXPECT_EQ(groups[1]["name"], "fmm2_band5.tuned #2") << "told apart where there are several";
  EXPECT_EQ(groups[2]["name"], "fmm2_band5.tuned train.steps=3 #4");
  EXPECT_EQ(groups[3]["name"], "copy/x #5");
  EXPECT_EQ(groups[0]["lra"]["task"], "text");
  EXPECT_DOUBLE_EQ(groups[0]["lra"]["paper"], 0.6784);
  EXPECT_TRUE(groups[3]["lra"].is_null());
  EXPECT_DOUBLE_EQ(data["lra"]["averages"]["softmax"], 0.587);
}

TEST(Page, KnowsWhoseRunsStandForAnExperimentOfLongRangeArena) {
  const PageOptions options{
      .lra_stand_ins = {{"lra/text/linear.tuned", "lra/text/linear.published"}}};
  const json data = embedded(render_page({}, options));
  EXPECT_EQ(data["lra"]["stand_ins"], json({{"text/linear.tuned", "text/linear.published"}}));
}

TEST(Page, CarriesTimingsOnAGpuAndTheirScalingFigure) {
  json value = synthetic_gpu();
  value["series"] = synthetic_scaling()["series"];
  value["series_about"] = "one layer";
  const json data = embedded(render_page({parse_record(value, "record.json")}, {}));
  ASSERT_EQ(data["gpu"].size(), 1U);
  EXPECT_EQ(data["gpu"][0]["run"], 0);
  EXPECT_DOUBLE_EQ(data["gpu"][0]["timings"][0]["limit"], 0.15e-3);
  EXPECT_EQ(data["gpu"][0]["timings"][0]["peers"][0]["why_not"], "has no dropout");
  EXPECT_EQ(data["gpu"][0]["bars"][1]["met"], false);
  EXPECT_EQ(data["scaling"][0]["about"], "one layer");
}

TEST(Page, LongCurvesAreThinned) {
  const json data = page_data(study(), {.most_curve_points = 50});
  EXPECT_EQ(data["groups"][0]["curves"]["train"]["loss"].size(), 50U);
}

TEST(Page, OfNoRunsIsStillAPage) {
  const json data = embedded(render_page({}, {}));
  EXPECT_TRUE(data["runs"].empty());
}

TEST(Page, SurvivesRecordsWithNothingInThem) {
  const std::vector<Record> records = {parse_record(minimal_record("training"), "a/record.json"),
                                       parse_record(minimal_record("scaling"), "b/record.json"),
                                       parse_record(minimal_record("gpu"), "c/record.json")};
  const json data = embedded(render_page(records, {}));
  EXPECT_TRUE(data["groups"][0]["results"]["best_metric"].is_null());
  EXPECT_TRUE(data["scaling"][0]["series"].empty());
}

TEST(PackedMatrix, KeepsValuesToSixteenBits) {
  const Matrix matrix{.rows = 2, .columns = 3, .values = {0, 0.25F, -0.5F, 1, 0.125F, 0.75F}};
  const json packed = packed_matrix(matrix);
  const std::vector<double> values = unpacked(packed);
  ASSERT_EQ(values.size(), 6U);
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(values[i], matrix.values[i], 1.5 / 65535) << i;
}

TEST(PackedMatrix, CountsWhatIsNotFiniteAsZero) {
  const float infinity = std::numeric_limits<float>::infinity();
  const Matrix matrix{.rows = 1, .columns = 2, .values = {infinity, 0.5F}};
  const json packed = packed_matrix(matrix);
  EXPECT_EQ(packed["high"], 0.5);
  EXPECT_NEAR(unpacked(packed)[0], 0, 1e-9);
  const Matrix zeros{.rows = 1, .columns = 1, .values = {0}};
  EXPECT_EQ(unpacked(packed_matrix(zeros)).front(), 0);
}

}  // namespace
}  // namespace fmmformer::report
