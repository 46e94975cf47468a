// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace fmmformer::tasks::fetch {

/// A size for the eyes of a person: "812 B", "3.4 MB", "8.2 GB"; decimal, as disks are sold.
std::string byte_text(int64_t bytes);

}  // namespace fmmformer::tasks::fetch
