// SPDX-License-Identifier: Apache-2.0
// Text that goes into an HTML page and must stay text.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace fmmformer::report {

/// For element content and quoted attributes.
std::string html_escaped(std::string_view text);

/// JSON for the inside of a <script> element: no `<`, `>` or `&` and no U+2028 or U+2029 is left,
/// so nothing in it can close the element or open a comment. Bytes that are not UTF-8 become
/// U+FFFD; numbers that are not finite become null.
std::string script_json(const nlohmann::json& value);

}  // namespace fmmformer::report
