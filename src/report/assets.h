// SPDX-License-Identifier: Apache-2.0
// The parts of the page that are not numbers, embedded at build time (embed.cmake).
#pragma once

#include <string_view>

namespace fmmformer::report::asset {

std::string_view page_html();
std::string_view page_css();
std::string_view page_js();   // page/*.js, one after the other
std::string_view chart_js();  // Debian's Chart.js (MIT), its licence line included

}  // namespace fmmformer::report::asset
