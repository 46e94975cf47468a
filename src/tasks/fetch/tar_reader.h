// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <zlib.h>

#include "tasks/fetch/archive.h"

namespace fmmformer::tasks::fetch {

/// A tar file, plain or in gzip: ustar, with the long names of GNU and of pax. Reads on behind the
/// tar's own end to that of the gzip file, whose checksum covers everything.
class TarReader : public ArchiveReader {
 public:
  explicit TarReader(const std::filesystem::path& path);
  TarReader(const TarReader&) = delete;
  TarReader& operator=(const TarReader&) = delete;
  ~TarReader() override { gzclose_r(file_); }

  std::optional<ArchiveMember> next() override;
  size_t read(std::span<std::byte> buffer) override;
  int64_t position() const override { return gzoffset(file_); }

 private:
  struct Header;
  struct Extension {  // what a header before the member's own says of it
    std::string path;
    int64_t size = -1;
  };

  bool read_header(Header& header);
  size_t read_some(std::span<std::byte> buffer);
  void skip(int64_t bytes);
  std::string read_text(int64_t size);
  void read_to_the_end();

  std::filesystem::path path_;
  gzFile file_;
  int64_t left_ = 0;     // of the present member
  int64_t padding_ = 0;  // after it, up to a whole block
};

}  // namespace fmmformer::tasks::fetch
