// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>

#include "fmmformer/core/way_out.h"

namespace fmmformer::tasks::fetch {

/// Throws "cannot <what> '<path>': <the system's words for errno `error`>", with a way out.
[[noreturn]] inline void fail(const std::filesystem::path& path, const char* what, int error) {
  throw std::runtime_error("cannot " + std::string(what) + " '" + path.string() + "': " +
                           std::generic_category().message(error) + std::string(way_out(error)));
}

}  // namespace fmmformer::tasks::fetch
