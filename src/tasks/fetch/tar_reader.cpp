// SPDX-License-Identifier: Apache-2.0
#include "tasks/fetch/tar_reader.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <vector>

namespace fmmformer::tasks::fetch {
namespace {

constexpr int64_t kBlock = 512;
// Names are far shorter; a damaged header must not ask for gigabytes of memory.
constexpr int64_t kLongestExtension = 1 << 20;

int64_t padding_of(int64_t size) { return (kBlock - size % kBlock) % kBlock; }

/// Fields end at a NUL, or with the field.
std::string_view field_text(const char* field, size_t width) {
  return {field, strnlen(field, width)};
}

/// Octal digits, or, with the topmost bit set, a big-endian number. -1: neither.
int64_t field_number(const char* field, size_t width) {
  int64_t number = 0;
  if ((static_cast<unsigned char>(field[0]) & 0x80) != 0) {
    for (size_t i = 1; i < width; ++i) {
      if (number >> 55 != 0) return -1;
      number = number << 8 | static_cast<unsigned char>(field[i]);
    }
    return number;
  }
  for (const char digit : field_text(field, width)) {
    if (digit == ' ') continue;
    if (digit < '0' || digit > '7' || number >> 59 != 0) return -1;
    number = number << 3 | (digit - '0');
  }
  return number;
}

}  // namespace

struct TarReader::Header {
  std::array<char, kBlock> bytes;

  const char* at(size_t offset) const { return bytes.data() + offset; }
  std::string path() const {
    std::string path(field_text(at(0), 100));
    // Only ustar has a prefix; old GNU archives ("ustar  ") keep other things there.
    if (std::memcmp(at(257), "ustar\0", 6) != 0) return path;
    const std::string_view prefix = field_text(at(345), 155);
    return prefix.empty() ? path : std::string(prefix).append("/").append(path);
  }
  int64_t size() const { return field_number(at(124), 12); }
  char type() const { return bytes[156]; }
  bool is_zero() const {
    return std::ranges::all_of(bytes, [](char byte) { return byte == 0; });
  }
  bool checksum_is_right() const {
    int64_t sum = int64_t{8} * ' ';  // the checksum's own field counts as blanks
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (i < 148 || i >= 156) sum += static_cast<unsigned char>(bytes[i]);
    }
    return sum == field_number(at(148), 8);
  }
  MemberKind kind() const {
    switch (type()) {
      case '0':
      case '\0':
      case '7':
        return MemberKind::kFile;
      case '5':
        return MemberKind::kFolder;
      default:
        return MemberKind::kOther;
    }
  }
};

namespace {

/// pax: lines of "LENGTH KEY=VALUE\n", of which the length counts the whole line.
std::string pax_value(std::string_view text, std::string_view key) {
  std::string value;
  while (!text.empty()) {
    const size_t blank = text.find(' ');
    size_t length = 0;
    for (const char digit : text.substr(0, std::min<size_t>(blank, 9))) {
      length = digit >= '0' && digit <= '9' ? length * 10 + static_cast<size_t>(digit - '0') : 0;
    }
    if (blank == std::string_view::npos || length <= blank + 1 || length > text.size()) break;
    const std::string_view record = text.substr(blank + 1, length - blank - 2);
    const size_t equals = record.find('=');
    if (equals != std::string_view::npos && record.substr(0, equals) == key) {
      value = record.substr(equals + 1);
    }
    text.remove_prefix(length);
  }
  return value;
}

}  // namespace

TarReader::TarReader(const std::filesystem::path& path)
    : path_(path), file_(gzopen(path.c_str(), "rbe")) {
  if (file_ == nullptr) throw std::runtime_error("cannot read '" + path.string() + "'");
  gzbuffer(file_, 1 << 18);
}

std::optional<ArchiveMember> TarReader::next() {
  skip(left_ + padding_);
  left_ = padding_ = 0;
  Extension extension;
  for (Header header; read_header(header);) {
    const int64_t size = header.size();
    if (size < 0) throw ArchiveError(path_, "a member's size is damaged");
    switch (header.type()) {
      case 'L':
        extension.path = read_text(size);
        extension.path.resize(strnlen(extension.path.c_str(), extension.path.size()));
        continue;
      case 'x': {
        const std::string text = read_text(size);
        if (std::string path = pax_value(text, "path"); !path.empty()) extension.path = path;
        const std::string whole_size = pax_value(text, "size");
        if (!whole_size.empty()) extension.size = std::strtoll(whole_size.c_str(), nullptr, 10);
        continue;
      }
      case 'K':
      case 'g':
        skip(size + padding_of(size));
        continue;
      default:
        break;
    }
    ArchiveMember member{header.path(), size, header.kind()};
    if (!extension.path.empty()) member.path = extension.path;
    if (extension.size >= 0) member.size = extension.size;
    left_ = member.size;
    padding_ = padding_of(member.size);
    return member;
  }
  read_to_the_end();
  return std::nullopt;
}

bool TarReader::read_header(Header& header) {
  const auto bytes = std::as_writable_bytes(std::span(header.bytes));
  size_t count = 0;
  while (count < bytes.size()) {
    const size_t more = read_some(bytes.subspan(count));
    if (more == 0) break;
    count += more;
  }
  if (count < bytes.size()) throw ArchiveError(path_, "it ends too early");
  if (header.is_zero()) return false;
  if (!header.checksum_is_right()) throw ArchiveError(path_, "a member's header is damaged");
  return true;
}

size_t TarReader::read(std::span<std::byte> buffer) {
  const size_t wanted = std::min<size_t>(buffer.size(), static_cast<size_t>(left_));
  if (wanted == 0) return 0;
  const size_t count = read_some(buffer.first(wanted));
  if (count == 0) throw ArchiveError(path_, "it ends in the middle of a member");
  left_ -= static_cast<int64_t>(count);
  return count;
}

size_t TarReader::read_some(std::span<std::byte> buffer) {
  const int count = gzread(file_, buffer.data(), static_cast<unsigned>(buffer.size()));
  int code = Z_OK;
  const char* const text = gzerror(file_, &code);
  if (code == Z_BUF_ERROR) throw ArchiveError(path_, "it ends too early");
  if (count < 0) throw ArchiveError(path_, std::string("it is damaged (") + text + ")");
  return static_cast<size_t>(count);
}

void TarReader::skip(int64_t bytes) {
  std::vector<std::byte> scratch(static_cast<size_t>(std::min<int64_t>(bytes, 1 << 18)));
  while (bytes > 0) {
    const size_t wanted = std::min<size_t>(scratch.size(), static_cast<size_t>(bytes));
    const size_t count = read_some(std::span(scratch).first(wanted));
    if (count == 0) throw ArchiveError(path_, "it ends in the middle of a member");
    bytes -= static_cast<int64_t>(count);
  }
}

std::string TarReader::read_text(int64_t size) {
  if (size > kLongestExtension) throw ArchiveError(path_, "a member's header is damaged");
  std::string text(static_cast<size_t>(size), '\0');
  left_ = size;
  for (size_t count = 0; count < text.size();) {
    count += read(std::as_writable_bytes(std::span(text)).subspan(count));
  }
  skip(padding_of(size));
  return text;
}

void TarReader::read_to_the_end() {
  std::vector<std::byte> scratch(1 << 16);
  while (read_some(scratch) > 0) {
  }
}

}  // namespace fmmformer::tasks::fetch
