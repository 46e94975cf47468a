// SPDX-License-Identifier: Apache-2.0
// Whether a file is the one that was meant. Where nobody has published a checksum, the first file
// that comes is trusted and its checksum kept beside it, in NAME.sha256: a later one must be the
// same.
#pragma once

#include <filesystem>
#include <string>

#include "tasks/fetch/listener.h"

namespace fmmformer::tasks::fetch {

enum class Trust {
  kPublished,  // equal to the checksum that others have published
  kRecorded,   // equal to that of an earlier fetch
  kFirstUse,   // nothing to compare with
};

/// What a file is to be compared with.
struct Checksum {
  Trust trust = Trust::kFirstUse;
  std::string sha256;  // empty: nothing
};

/// The published checksum where there is one, else what NAME.sha256 beside `path` holds. Throws
/// std::runtime_error for a NAME.sha256 that is none.
Checksum known_checksum(const std::filesystem::path& path, const std::string& published);

/// Writes NAME.sha256 beside `path`, in the format of sha256sum, which can check it.
void record_checksum(const std::filesystem::path& path, const std::string& sha256);

std::filesystem::path record_of(const std::filesystem::path& path);

/// The SHA-256 of `path`, with progress.
std::string measured_checksum(const std::filesystem::path& path, const Listener& listener);

}  // namespace fmmformer::tasks::fetch
