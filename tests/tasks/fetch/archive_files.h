// SPDX-License-Identifier: Apache-2.0
// Archives made byte by byte, for tests of what reads them.
#pragma once

#include <zlib.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace fmmformer::tasks::fetch {

/// One member of a tar file, header and padding included. `type`: '0' file, '2' link, '5' folder,
/// 'L' the long name of the next, 'x' pax records about the next.
inline std::string tar_member(const std::string& path, const std::string& content,
                              char type = '0') {
  std::array<char, 512> header = {};
  std::memcpy(header.data(), path.data(), std::min<size_t>(path.size(), 100));
  std::snprintf(&header[100], 8, "%07o", 0644);
  std::snprintf(&header[124], 12, "%011zo", content.size());
  header[156] = type;
  std::memcpy(&header[257], "ustar\00000", 8);
  std::memset(&header[148], ' ', 8);
  unsigned sum = 0;
  for (const char byte : header) sum += static_cast<unsigned char>(byte);
  std::snprintf(&header[148], 8, "%06o", sum);
  return std::string(header.data(), header.size()) + content +
         std::string((512 - content.size() % 512) % 512, '\0');
}

inline std::string tar_end() { return std::string(1024, '\0'); }

inline std::string pax_record(const std::string& key, const std::string& value) {
  const std::string rest = " " + key + "=" + value + "\n";
  size_t length = rest.size() + 1;
  while (std::to_string(length).size() + rest.size() != length) ++length;
  return std::to_string(length) + rest;
}

/// `window_bits`: 31 for a gzip file, -15 for the bare bytes that a zip has.
inline std::string deflated(const std::string& bytes, int window_bits) {
  z_stream stream = {};
  deflateInit2(&stream, 6, Z_DEFLATED, window_bits, 8, Z_DEFAULT_STRATEGY);
  std::string packed(deflateBound(&stream, bytes.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<unsigned char*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<unsigned>(bytes.size());
  stream.next_out = reinterpret_cast<unsigned char*>(packed.data());
  stream.avail_out = static_cast<unsigned>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}
inline std::string gzip(const std::string& bytes) { return deflated(bytes, 31); }

struct ZipMember {
  std::string path, content;
  bool stored = false;
  uint32_t mode = 0100644;
};

inline std::string zip_file(const std::vector<ZipMember>& members) {
  const auto number = [](uint64_t value, int width) {
    std::string bytes;
    for (int i = 0; i < width; ++i) bytes += static_cast<char>(value >> (8 * i) & 255);
    return bytes;
  };
  std::string file, list;
  for (const ZipMember& member : members) {
    const std::string packed = member.stored ? member.content : deflated(member.content, -15);
    const auto checksum = crc32(0, reinterpret_cast<const unsigned char*>(member.content.data()),
                                static_cast<unsigned>(member.content.size()));
    // What the member's own header and the list have in common.
    const std::string common = number(20, 2) + number(0, 2) + number(member.stored ? 0 : 8, 2) +
                               number(0, 4) + number(checksum, 4) + number(packed.size(), 4) +
                               number(member.content.size(), 4) + number(member.path.size(), 2) +
                               number(0, 2);
    list += "PK\1\2" + number(20 | 3 << 8, 2) + common + number(0, 6) +
            number(uint64_t{member.mode} << 16, 4) + number(file.size(), 4) + member.path;
    file += "PK\3\4" + common + member.path + packed;
  }
  const size_t offset = file.size();
  return file + list + "PK\5\6" + number(0, 4) + number(members.size(), 2) +
         number(members.size(), 2) + number(list.size(), 4) + number(offset, 4) + number(0, 2);
}

}  // namespace fmmformer::tasks::fetch
