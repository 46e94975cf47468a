// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tasks/fetch/listener.h"

namespace fmmformer::tasks::fetch {

/// What of an archive is wanted: files and folders (which end in '/') below one folder of it,
/// wherever in the archive that lies.
struct Selection {
  std::string folder;               // "listops-1000"
  std::vector<std::string> wanted;  // "basic_train.tsv", "imgs/"
};

struct Unpacked {
  std::filesystem::path folder;
  int64_t files = 0;
  int64_t bytes = 0;
  bool was_there = false;  // and nothing was done
};

/// Unpacks the selection to INTO/FOLDER, which is there whole or not at all: until then it is
/// INTO/FOLDER.part. The archive is read to its end, so that its checksum counts. Throws
/// ArchiveError for an archive that is damaged, that lacks something wanted, or of which something
/// wanted would land outside that folder; std::runtime_error where the disk is full, or where
/// INTO/FOLDER is there and lacks something.
Unpacked unpack(const std::filesystem::path& archive, const Selection& selection,
                const std::filesystem::path& into, const Listener& listener = {});

}  // namespace fmmformer::tasks::fetch
