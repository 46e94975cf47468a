// SPDX-License-Identifier: Apache-2.0
#include "report/page.h"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

#include "report/assets.h"
#include "report/escape.h"
#include "report/page_data.h"

namespace fmmformer::report {
namespace {

std::string slot_content(std::string_view slot, const std::vector<Record>& records,
                         const PageOptions& options) {
  if (slot == "title") return html_escaped(options.title);
  if (slot == "style") return std::string(asset::page_css());
  if (slot == "chart_library") return std::string(asset::chart_js());
  if (slot == "script") return std::string(asset::page_js());
  if (slot == "data") return script_json(page_data(records, options));
  throw std::logic_error("page.html has an unknown slot {{" + std::string(slot) + "}}");
}

}  // namespace

std::string render_page(const std::vector<Record>& records, const PageOptions& options) {
  // One pass over the template: what fills a slot is never searched for slots.
  std::string page;
  std::string_view rest = asset::page_html();
  for (size_t open = rest.find("{{"); open != std::string_view::npos; open = rest.find("{{")) {
    const size_t close = rest.find("}}", open);
    if (close == std::string_view::npos) throw std::logic_error("page.html has an open slot");
    page += rest.substr(0, open);
    page += slot_content(rest.substr(open + 2, close - open - 2), records, options);
    rest.remove_prefix(close + 2);
  }
  page += rest;
  return page;
}

}  // namespace fmmformer::report
