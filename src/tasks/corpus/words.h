// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace fmmformer::tasks {

/// Takes the next word off the begin of a UTF-8 text: what stands between white space, Unicode's
/// included, where Python's str.split() parts words too. Empty when there is none left.
std::string_view next_word(std::string_view& text);

/// A word for the eyes of a person: bytes that a terminal would obey are spelled out, \x1b.
std::string readable_word(std::string_view word);

}  // namespace fmmformer::tasks
