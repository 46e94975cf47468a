// SPDX-License-Identifier: Apache-2.0
// Where the public data sets lie, and what is known of their files.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "tasks/fetch/download.h"
#include "tasks/fetch/unpack.h"

namespace fmmformer::tasks::fetch {

struct DataSource {
  std::string task;           // as `fmmformer data fetch` names it
  std::string what;           // one line about it
  RemoteFile archive;         // several sources may lie in one archive, which is then fetched once
  Selection selection;        // what of it is unpacked
  std::string import_folder;  // what `data import` is given of it
  std::string licence;
  std::string citation;
  int64_t about_bytes = 0;  // of the archive, where its exact size is not published
};

std::span<const DataSource> data_sources();

/// Throws std::invalid_argument that lists the tasks and names the nearest.
const DataSource& data_source(std::string_view task);

/// The same file, from `mirror` first: the address of a folder that holds it, or of the file
/// itself.
RemoteFile with_mirror(RemoteFile file, const std::string& mirror);

}  // namespace fmmformer::tasks::fetch
