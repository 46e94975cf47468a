// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <zlib.h>

#include <fstream>
#include <vector>

#include "tasks/fetch/archive.h"

namespace fmmformer::tasks::fetch {

/// A zip file of stored and deflated members, up to 4 GB each; every member's checksum is verified.
class ZipReader : public ArchiveReader {
 public:
  explicit ZipReader(const std::filesystem::path& path);
  ZipReader(const ZipReader&) = delete;
  ZipReader& operator=(const ZipReader&) = delete;
  ~ZipReader() override;

  std::optional<ArchiveMember> next() override;
  size_t read(std::span<std::byte> buffer) override;
  int64_t position() const override { return position_; }

 private:
  struct Entry {
    ArchiveMember member;
    int64_t offset = 0;  // of its own header
    int64_t packed = 0;
    uint32_t checksum = 0;
    unsigned method = 0;
    unsigned flags = 0;
  };

  std::string bytes_at(int64_t offset, size_t count);
  void read_directory();
  void open(const Entry& entry);
  void fill_input();
  void check_end() const;
  [[noreturn]] void damaged(const std::string& what) const;

  std::filesystem::path path_;
  std::ifstream file_;
  int64_t file_size_ = 0;
  int64_t position_ = 0;
  std::vector<Entry> entries_;
  size_t next_ = 0;

  // The present member.
  z_stream stream_ = {};
  std::vector<unsigned char> input_;
  int64_t packed_left_ = 0;  // not yet in input_
  int64_t left_ = 0;         // not yet handed out
  uint32_t checksum_ = 0;
};

}  // namespace fmmformer::tasks::fetch
