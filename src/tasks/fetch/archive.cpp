// SPDX-License-Identifier: Apache-2.0
#include "tasks/fetch/archive.h"

#include <fstream>
#include <string_view>

#include "tasks/fetch/tar_reader.h"
#include "tasks/fetch/zip_reader.h"

namespace fmmformer::tasks::fetch {

ArchiveError::ArchiveError(const std::filesystem::path& archive, const std::string& cause)
    : std::runtime_error("cannot unpack '" + archive.string() + "': " + cause +
                         "; delete it and fetch it again") {}

std::unique_ptr<ArchiveReader> open_archive(const std::filesystem::path& path) {
  constexpr size_t kTarMagic = 257;  // where a tar's header says "ustar"
  std::string start(kTarMagic + 5, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read '" + path.string() + "'");
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  const std::string_view text = start;
  if (text.starts_with("PK")) return std::make_unique<ZipReader>(path);
  if (text.starts_with("\x1f\x8b") || text.substr(kTarMagic) == "ustar") {
    return std::make_unique<TarReader>(path);
  }
  throw ArchiveError(path, "it is neither a zip nor a tar nor a gzip file");
}

}  // namespace fmmformer::tasks::fetch
