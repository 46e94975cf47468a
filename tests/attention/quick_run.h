// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>

namespace fmmformer {

/// The runs that force an instruction set or a sanitizer: tests thin out what they loop over. The
/// first run, of the release build, sees everything.
inline bool quick_run() { return std::getenv("FMMFORMER_QUICK") != nullptr; }

}  // namespace fmmformer
