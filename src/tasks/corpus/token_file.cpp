// SPDX-License-Identifier: Apache-2.0
#include "tasks/corpus/token_file.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "fmmformer/core/atomic_file.h"
#include "fmmformer/core/crc32c.h"

namespace fmmformer::tasks {
namespace {

constexpr std::array<char, 8> kMagic = {'f', 'm', 'm', 't', 'o', 'k', 'n', '\n'};

struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kTokenFileVersion;
  uint32_t checksum = 0;
  std::array<char, 8> split = {};  // its name, filled up with zeros
  uint64_t vocabulary = 0;         // its size
  uint32_t fingerprint = 0;        // and which it is
  uint32_t width = 0;              // bytes of a token
  uint64_t tokens = 0;
};
static_assert(sizeof(Header) == 48, "no holes: a file has no bytes that nobody wrote");

uint32_t width_for(int64_t vocabulary) {
  return vocabulary <= 1 << 8 ? 1 : vocabulary <= 1 << 16 ? 2 : 4;
}

template <typename T>
std::string packed_as(std::span<const uint32_t> tokens) {
  std::string packed(tokens.size() * sizeof(T), '\0');
  char* to = packed.data();
  for (const uint32_t token : tokens) {
    const auto narrow = static_cast<T>(token);
    std::memcpy(to, &narrow, sizeof(T));
    to += sizeof(T);
  }
  return packed;
}

template <typename T>
void unpack(const std::byte* from, std::span<int64_t> out) {
  for (int64_t& token : out) {
    T narrow;
    std::memcpy(&narrow, from, sizeof(T));
    token = narrow;
    from += sizeof(T);
  }
}

}  // namespace

std::filesystem::path token_file_path(const std::filesystem::path& folder, Split split) {
  return folder / (std::string(enum_name(split)) + ".fmmtokens");
}

std::string packed_tokens(std::span<const uint32_t> tokens, const Vocabulary& vocabulary) {
  switch (width_for(vocabulary.size())) {
    case 1:
      return packed_as<uint8_t>(tokens);
    case 2:
      return packed_as<uint16_t>(tokens);
    default:
      return packed_as<uint32_t>(tokens);
  }
}

void write_token_file(const std::filesystem::path& folder, Split split,
                      const Vocabulary& vocabulary, std::string_view packed) {
  const std::filesystem::path path = token_file_path(folder, split);
  if (packed.empty()) {
    throw DataError("no tokens for '" + path.string() +
                    "': the source is empty; give one with text");
  }
  Header header{.vocabulary = static_cast<uint64_t>(vocabulary.size()),
                .fingerprint = vocabulary.fingerprint(),
                .width = width_for(vocabulary.size())};
  std::ranges::copy(enum_name(split), header.split.begin());
  header.tokens = packed.size() / header.width;
  const auto payload = std::as_bytes(std::span(packed));
  header.checksum = crc32c(payload, crc32c(header_bytes(header)));
  std::filesystem::create_directories(folder);
  const std::array<std::span<const std::byte>, 2> pieces = {header_bytes(header), payload};
  write_file_atomically(path, pieces);
}

TokenFile::TokenFile(const std::filesystem::path& folder, Split split, const Vocabulary& vocabulary)
    : path_(token_file_path(folder, split)),
      file_(path_, how_to_import(folder)),
      vocabulary_(vocabulary.size()) {
  check_header(split, vocabulary);
  tokens_ = static_cast<int64_t>(header_of<Header>(file_).tokens);
}

void TokenFile::check_header(Split split, const Vocabulary& vocabulary) const {
  const auto fail = [&](const std::string& what) {
    throw DataError("'" + path_.string() + "' " + what);
  };
  const bool whole = file_.bytes().size() >= sizeof(Header);
  const Header header = whole ? header_of<Header>(file_) : Header{};
  if (!whole || header.magic != kMagic) {
    fail("is no file of tokens; " + how_to_import(path_.parent_path()));
  }
  if (header.version != kTokenFileVersion) {
    fail("has format version " + std::to_string(header.version) + ", this program reads " +
         std::to_string(kTokenFileVersion) + "; import it again");
  }
  const std::string came(header.split.data(), strnlen(header.split.data(), header.split.size()));
  if (came != enum_name(split)) {
    fail("holds the split " + came + "; wanted is " + std::string(enum_name(split)) +
         ": import it again");
  }
  if (header.vocabulary != static_cast<uint64_t>(vocabulary.size()) ||
      header.fingerprint != vocabulary.fingerprint()) {
    fail("is of another vocabulary (of " + std::to_string(header.vocabulary) + " tokens) than '" +
         vocabulary_path(path_.parent_path()).string() + "' (" + std::to_string(vocabulary.size()) +
         "): its numbers would stand for other words; import all splits together again");
  }
  const uint64_t size = file_.bytes().size() - sizeof(Header);
  const bool fits = header.width == width_for(vocabulary.size()) && size % header.width == 0 &&
                    header.tokens == size / header.width && size > 0;
  if (!fits) {
    fail("has " + std::to_string(size) + " bytes of tokens, its header speaks of " +
         std::to_string(header.tokens) + " tokens: it is cut off or damaged; import it again");
  }
}

void TokenFile::damaged() const {
  throw DataError("'" + path_.string() + "' is damaged; import it again");
}

void TokenFile::read(int64_t begin, std::span<int64_t> out) const {
  if (begin < 0 || begin > tokens_ - std::ssize(out)) damaged();
  const uint32_t width = width_for(vocabulary_);
  const std::byte* from =
      file_.bytes().data() + sizeof(Header) + static_cast<size_t>(begin) * width;
  if (width == 1) {
    unpack<uint8_t>(from, out);
  } else if (width == 2) {
    unpack<uint16_t>(from, out);
  } else {
    unpack<uint32_t>(from, out);
  }
  // A wrong number would read beyond the model's tables, where a GPU cannot say what was wrong.
  if (std::ranges::any_of(out, [&](int64_t token) { return token >= vocabulary_; })) damaged();
}

void TokenFile::check() const { check_sum<Header>(path_, file_); }

}  // namespace fmmformer::tasks
