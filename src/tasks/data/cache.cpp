// SPDX-License-Identifier: Apache-2.0
#include "tasks/data/cache.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>

#include "fmmformer/core/atomic_file.h"
#include "fmmformer/core/crc32c.h"

namespace fmmformer::tasks {
namespace {

constexpr std::array<char, 8> kMagic = {'f', 'm', 'm', 'd', 'a', 't', 'a', '\n'};

struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kCacheVersion;
  uint32_t checksum = 0;
  std::array<char, 16> task = {};  // names, filled up with zeros
  std::array<char, 8> split = {};
  uint64_t documents = 0;
  uint64_t examples = 0;
  uint64_t bytes = 0;    // of all documents
  uint64_t payload = 0;  // all that follows the header
};
static_assert(sizeof(Header) == 72, "no holes: a file has no bytes that nobody wrote");

template <size_t N>
std::array<char, N> padded(std::string_view name) {
  std::array<char, N> out = {};
  std::ranges::copy(name.substr(0, N), out.begin());
  return out;
}

template <size_t N>
std::string text_of(const std::array<char, N>& name) {
  return std::string(name.data(), strnlen(name.data(), N));
}

// What a header says, in bytes; 128 bits, so that no count of a damaged file overflows.
__extension__ using Wide = unsigned __int128;
Wide payload_of(const Header& header) {
  return (Wide{header.documents} + 1) * sizeof(uint64_t) +
         Wide{header.examples} * (2 * sizeof(uint32_t) + sizeof(uint16_t)) + header.bytes;
}

template <typename T>
std::span<const T> take(std::span<const std::byte>& rest, uint64_t count) {
  const auto* begin = reinterpret_cast<const T*>(rest.data());
  rest = rest.subspan(count * sizeof(T));
  return {begin, static_cast<size_t>(count)};
}

std::string how_to_make(TaskName task) {
  const std::string name(enum_name(task));
  return (is_generated(task) ? "generate it with `fmmformer data make " + name + " --count N`, "
                             : "") +
         "make it with `fmmformer data import " + name +
         " SOURCE` (`fmmformer data list` says what SOURCE can be), or name the folder that holds "
         "it in task." +
         name + ".data";
}

}  // namespace

std::filesystem::path cache_path(const std::filesystem::path& folder, Split split) {
  return folder / (std::string(enum_name(split)) + ".fmmdata");
}

Split split_of_file(const std::filesystem::path& file) {
  Header header{.magic = {}};
  std::ifstream(file, std::ios::binary).read(reinterpret_cast<char*>(&header), sizeof(header));
  for (const Split split : kSplits) {
    if (header.magic == kMagic && text_of(header.split) == enum_name(split)) return split;
  }
  throw DataError(
      "'" + file.string() +
      "' is no data file of fmmformer; give one that `fmmformer data` made, or the file "
      "that it was made of");
}

uint32_t CacheWriter::add_document(std::string_view bytes) {
  if (documents() >= kNoDocument) throw DataError("more documents than a data file can number");
  bytes_ += bytes;
  offsets_.push_back(bytes_.size());
  return static_cast<uint32_t>(documents() - 1);
}

void CacheWriter::add_example(const Example& example) {
  first_.push_back(example.first);
  second_.push_back(example.second);
  labels_.push_back(example.label);
}

void CacheWriter::add(std::string_view document, uint16_t label) {
  add_example({.label = label, .first = add_document(document)});
}

std::string_view CacheWriter::document(uint32_t index) const {
  return std::string_view(bytes_).substr(offsets_[index], offsets_[index + 1] - offsets_[index]);
}

Example CacheWriter::example(int64_t index) const {
  const auto i = static_cast<size_t>(index);
  return {labels_[i], first_[i], second_[i]};
}

CacheWriter CacheWriter::subset(std::span<const uint32_t> examples) const {
  CacheWriter out;
  std::vector<uint32_t> moved(static_cast<size_t>(documents()), kNoDocument);
  const auto taken = [&](uint32_t document_index) {
    if (document_index == kNoDocument) return kNoDocument;
    uint32_t& place = moved[document_index];
    if (place == kNoDocument) place = out.add_document(document(document_index));
    return place;
  };
  for (const uint32_t index : examples) {
    const Example all = example(index);
    const uint32_t first = taken(all.first);
    out.add_example({.label = all.label, .first = first, .second = taken(all.second)});
  }
  return out;
}

void CacheWriter::write(const std::filesystem::path& folder, TaskName task, Split split) const {
  if (examples() == 0) {
    throw DataError("no examples for '" + cache_path(folder, split).string() +
                    "': the source is empty; give one with examples");
  }
  Header header{.task = padded<16>(enum_name(task)),
                .split = padded<8>(enum_name(split)),
                .documents = static_cast<uint64_t>(documents()),
                .examples = static_cast<uint64_t>(examples()),
                .bytes = bytes_.size()};
  header.payload = static_cast<uint64_t>(payload_of(header));
  const std::array<std::span<const std::byte>, 6> pieces = {header_bytes(header),
                                                            std::as_bytes(std::span(offsets_)),
                                                            std::as_bytes(std::span(first_)),
                                                            std::as_bytes(std::span(second_)),
                                                            std::as_bytes(std::span(labels_)),
                                                            std::as_bytes(std::span(bytes_))};
  uint32_t checksum = 0;
  for (const auto piece : pieces) checksum = crc32c(piece, checksum);
  header.checksum = checksum;
  std::filesystem::create_directories(folder);
  write_file_atomically(cache_path(folder, split), pieces);
}

DataCache::DataCache(TaskName task, Split split, const std::filesystem::path& file)
    : path_(file), file_(path_, how_to_make(task)) {
  check_header(task, split);
  place_arrays();
}

void DataCache::check_header(TaskName task, Split split) const {
  const auto fail = [&](const std::string& what) {
    throw DataError("'" + path_.string() + "' " + what);
  };
  const bool whole = file_.bytes().size() >= sizeof(Header);
  const Header header = whole ? header_of<Header>(file_) : Header{};
  if (!whole || header.magic != kMagic) fail("is no data file of fmmformer; " + how_to_make(task));
  if (header.version != kCacheVersion) {
    fail("has format version " + std::to_string(header.version) + ", this program reads " +
         std::to_string(kCacheVersion) + "; import it again");
  }
  const std::string wanted = std::string(enum_name(task)) + ", " + std::string(enum_name(split));
  const std::string came = text_of(header.task) + ", " + text_of(header.split);
  if (came != wanted) fail("holds " + came + "; wanted is " + wanted + ": " + how_to_make(task));
  const uint64_t size = file_.bytes().size() - sizeof(Header);
  if (size != header.payload) {
    fail("has " + std::to_string(size) + " bytes of data, its header speaks of " +
         std::to_string(header.payload) + ": it is cut off or damaged; import it again");
  }
  if (payload_of(header) != size) {
    fail("has a header whose counts do not fit its " + std::to_string(size) +
         " bytes of data: it is damaged; import it again");
  }
  if (header.examples == 0) fail("holds no examples; import it again");
}

void DataCache::place_arrays() {
  const Header header = header_of<Header>(file_);
  std::span<const std::byte> rest = file_.bytes().subspan(sizeof(Header));
  offsets_ = take<uint64_t>(rest, header.documents + 1);
  first_ = take<uint32_t>(rest, header.examples);
  second_ = take<uint32_t>(rest, header.examples);
  labels_ = take<uint16_t>(rest, header.examples);
  bytes_ = take<char>(rest, header.bytes);
}

void DataCache::damaged() const {
  throw DataError("'" + path_.string() + "' is damaged; import it again");
}

Example DataCache::example(int64_t index) const {
  if (index < 0 || index >= examples()) damaged();
  const auto i = static_cast<size_t>(index);
  return {labels_[i], first_[i], second_[i]};
}

std::string_view DataCache::document(uint32_t index) const {
  if (index >= documents()) damaged();
  const uint64_t begin = offsets_[index], end = offsets_[index + 1];
  if (begin > end || end > bytes_.size()) damaged();
  return {bytes_.data() + begin, static_cast<size_t>(end - begin)};
}

void DataCache::check() const { check_sum<Header>(path_, file_); }

}  // namespace fmmformer::tasks
