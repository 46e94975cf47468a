// SPDX-License-Identifier: Apache-2.0
#include "tasks/fetch/zip_reader.h"

#include <algorithm>

namespace fmmformer::tasks::fetch {
namespace {

constexpr size_t kEndSize = 22, kEntrySize = 46, kLocalSize = 30, kLongestComment = 65535;
constexpr unsigned kStored = 0, kDeflated = 8;
constexpr unsigned kEncrypted = 1;          // a flag
constexpr uint32_t kIn64Bits = 0xffffffff;  // a field that a zip64 archive keeps elsewhere

uint32_t number_at(const std::string& bytes, size_t offset, size_t width) {
  uint32_t number = 0;
  for (size_t i = width; i-- > 0;) {
    number = number << 8 | static_cast<unsigned char>(bytes[offset + i]);
  }
  return number;
}

}  // namespace

ZipReader::ZipReader(const std::filesystem::path& path) : path_(path), input_(1 << 17) {
  file_.open(path, std::ios::binary);
  if (!file_) throw std::runtime_error("cannot read '" + path.string() + "'");
  file_size_ = static_cast<int64_t>(std::filesystem::file_size(path));
  if (inflateInit2(&stream_, -MAX_WBITS) != Z_OK) throw std::runtime_error("zlib cannot start");
  try {
    read_directory();
  } catch (...) {
    inflateEnd(&stream_);
    throw;
  }
}

ZipReader::~ZipReader() { inflateEnd(&stream_); }

void ZipReader::damaged(const std::string& what) const { throw ArchiveError(path_, what); }

std::string ZipReader::bytes_at(int64_t offset, size_t count) {
  if (offset < 0 || offset + static_cast<int64_t>(count) > file_size_) damaged("it ends too early");
  std::string bytes(count, '\0');
  file_.seekg(offset);
  if (!file_.read(bytes.data(), static_cast<std::streamsize>(count))) damaged("it ends too early");
  return bytes;
}

/// The list of members lies at the end of the file, and where it begins in what is last of all.
void ZipReader::read_directory() {
  const auto tail_size = std::min<int64_t>(file_size_, kEndSize + kLongestComment);
  const std::string tail = bytes_at(file_size_ - tail_size, static_cast<size_t>(tail_size));
  const size_t end = tail.rfind("PK\5\6");
  if (end == std::string::npos || end + kEndSize > tail.size()) damaged("it ends too early");
  const uint32_t size = number_at(tail, end + 12, 4), offset = number_at(tail, end + 16, 4);
  if (offset == kIn64Bits || size == kIn64Bits) damaged("it is a zip64 file, which is not known");
  const std::string list = bytes_at(offset, size);
  for (size_t at = 0; at + kEntrySize <= list.size() && list.compare(at, 4, "PK\1\2") == 0;) {
    const size_t name = number_at(list, at + 28, 2);
    if (at + kEntrySize + name > list.size()) damaged("its list of members is damaged");
    Entry entry;
    entry.flags = number_at(list, at + 8, 2);
    entry.method = number_at(list, at + 10, 2);
    entry.checksum = number_at(list, at + 16, 4);
    entry.packed = number_at(list, at + 20, 4);
    entry.offset = number_at(list, at + 42, 4);
    entry.member.size = number_at(list, at + 24, 4);
    entry.member.path = list.substr(at + kEntrySize, name);
    if (entry.member.path.ends_with('/')) entry.member.kind = MemberKind::kFolder;
    // Made on Unix, an entry has the file's mode, of which symbolic links are a kind.
    const uint32_t mode = number_at(list, at + 38, 4) >> 16;
    if (list[at + 5] == 3 && (mode & 0170000) == 0120000) entry.member.kind = MemberKind::kOther;
    entries_.push_back(std::move(entry));
    at += kEntrySize + name + number_at(list, at + 30, 2) + number_at(list, at + 32, 2);
  }
  if (entries_.size() != number_at(tail, end + 10, 2)) damaged("its list of members is damaged");
}

std::optional<ArchiveMember> ZipReader::next() {
  if (next_ == entries_.size()) return std::nullopt;
  const Entry& entry = entries_[next_++];
  open(entry);
  return entry.member;
}

void ZipReader::open(const Entry& entry) {
  const std::string& name = entry.member.path;
  const std::string local = bytes_at(entry.offset, kLocalSize);
  const size_t name_size = number_at(local, 26, 2);
  // No checksum covers the name; but it is there twice.
  const int64_t name_offset = entry.offset + static_cast<int64_t>(kLocalSize);
  if (!local.starts_with("PK\3\4") || name_size != name.size() ||
      bytes_at(name_offset, name_size) != name) {
    damaged("the header of '" + name + "' is damaged");
  }
  const int64_t begin = name_offset + number_at(local, 26, 2) + number_at(local, 28, 2);
  if (begin + entry.packed > file_size_) damaged("it ends too early");
  file_.seekg(begin);
  position_ = begin;
  packed_left_ = entry.packed;
  left_ = entry.member.size;
  checksum_ = static_cast<uint32_t>(crc32(0, nullptr, 0));
  inflateReset(&stream_);
  stream_.avail_in = 0;
}

void ZipReader::fill_input() {
  const auto count = std::min<int64_t>(packed_left_, static_cast<int64_t>(input_.size()));
  if (count == 0) damaged("a member ends too early");
  if (!file_.read(reinterpret_cast<char*>(input_.data()), count)) damaged("it ends too early");
  packed_left_ -= count;
  position_ += count;
  stream_.next_in = input_.data();
  stream_.avail_in = static_cast<unsigned>(count);
}

size_t ZipReader::read(std::span<std::byte> buffer) {
  if (next_ == 0 || left_ == 0 || buffer.empty()) return 0;
  const Entry& entry = entries_[next_ - 1];
  const std::string& name = entry.member.path;
  if ((entry.flags & kEncrypted) != 0) damaged("'" + name + "' is encrypted");
  if (entry.method != kStored && entry.method != kDeflated) {
    damaged("'" + name + "' is packed in a way that is not known");
  }
  if (stream_.avail_in == 0) fill_input();
  size_t count = std::min<size_t>(buffer.size(), static_cast<size_t>(left_));
  if (entry.method == kStored) {
    count = std::min<size_t>(count, stream_.avail_in);
    std::copy_n(reinterpret_cast<const std::byte*>(stream_.next_in), count, buffer.data());
    stream_.next_in += count;
    stream_.avail_in -= static_cast<unsigned>(count);
  } else {
    stream_.next_out = reinterpret_cast<unsigned char*>(buffer.data());
    stream_.avail_out = static_cast<unsigned>(count);
    const int code = inflate(&stream_, Z_NO_FLUSH);
    count -= stream_.avail_out;
    const bool ended = code == Z_STREAM_END && static_cast<int64_t>(count) < left_;
    if (ended || (code != Z_OK && code != Z_STREAM_END)) damaged("'" + name + "' is damaged");
    if (count == 0) return read(buffer);  // all input went into the decoder's own state
  }
  checksum_ =
      static_cast<uint32_t>(crc32(checksum_, reinterpret_cast<const unsigned char*>(buffer.data()),
                                  static_cast<unsigned>(count)));
  left_ -= static_cast<int64_t>(count);
  if (left_ == 0) check_end();
  return count;
}

void ZipReader::check_end() const {
  const Entry& entry = entries_[next_ - 1];
  if (checksum_ != entry.checksum) damaged("'" + entry.member.path + "' is damaged");
}

}  // namespace fmmformer::tasks::fetch
