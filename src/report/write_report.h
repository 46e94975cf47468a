// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <vector>

#include "report/page.h"

namespace fmmformer::report {

/// Reads the records that `paths` stand for (record.h: find_records) and writes one page, whole or
/// not at all. Returns how many records it shows. Throws std::invalid_argument for what the user
/// gave: no paths, no records, a broken record, an output that is a folder or lies in a missing
/// one; std::runtime_error when the page cannot be written.
int64_t write_report(const std::vector<std::filesystem::path>& paths,
                     const std::filesystem::path& output, PageOptions options = {});

}  // namespace fmmformer::report
