// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace fmmformer {

/// What a user can do about an errno of writing a file, "; free some space there, or use another
/// disk": for the end of an error's text. Empty where nothing is known to help.
std::string_view way_out(int error);

}  // namespace fmmformer
