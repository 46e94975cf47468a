// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tasks/fetch/checksum.h"
#include "tasks/fetch/listener.h"

namespace fmmformer::tasks::fetch {

/// A public file and what is known of it.
struct RemoteFile {
  std::string name;                    // what it is called on the disk
  std::vector<std::string> addresses;  // tried in this order
  int64_t size = 0;                    // bytes; 0: not published
  std::string sha256;                  // lower-case hexadecimal; empty: not published
};

struct DownloadOptions {
  std::filesystem::path folder;           // made where it is not there
  int tries = 5;                          // of an address, one after another without progress
  std::chrono::milliseconds pause{1000};  // before the second try; doubled before each further one
  std::chrono::seconds connect_limit{20};
  std::chrono::seconds stall_limit{30};
};

struct Downloaded {
  std::filesystem::path path;
  int64_t size = 0;
  std::string sha256;
  Trust trust = Trust::kFirstUse;
  std::string address;  // empty: it was there already
};

/// Has FOLDER/NAME on the disk, whole and verified, and says what it is. Until then it is
/// FOLDER/NAME.part, which a later call continues, from whichever address; a process that finds
/// another at work waits for its result. A file that is there already is verified and not fetched
/// again. Throws std::runtime_error: when no address gives the file, with what each of them gave
/// and how to bring the file by hand; when a file is not the one that it was, or was said to be;
/// when the disk is full.
Downloaded download(const RemoteFile& file, const DownloadOptions& options,
                    const Listener& listener = {});

}  // namespace fmmformer::tasks::fetch
