// SPDX-License-Identifier: Apache-2.0
#include "tasks/fetch/checksum.h"

#include <fstream>
#include <stdexcept>
#include <string_view>

#include "fmmformer/core/atomic_file.h"
#include "tasks/fetch/sha256.h"

namespace fmmformer::tasks::fetch {
namespace {

constexpr size_t kDigits = 64;

bool is_sha256(std::string_view text) {
  return text.size() == kDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

std::filesystem::path record_of(const std::filesystem::path& path) {
  std::filesystem::path record = path;
  record += ".sha256";
  return record;
}

Checksum known_checksum(const std::filesystem::path& path, const std::string& published) {
  if (!published.empty()) return {Trust::kPublished, published};
  const std::filesystem::path record = record_of(path);
  std::ifstream file(record);
  if (!file) return {};
  std::string sha256;
  file >> sha256;
  if (!is_sha256(sha256)) {
    throw std::runtime_error("'" + record.string() + "' should hold the checksum of '" +
                             path.filename().string() +
                             "' as sha256sum writes it, and does not; delete it to trust the file "
                             "as it is");
  }
  return {Trust::kRecorded, sha256};
}

void record_checksum(const std::filesystem::path& path, const std::string& sha256) {
  write_file_atomically(record_of(path), sha256 + "  " + path.filename().string() + "\n");
}

std::string measured_checksum(const std::filesystem::path& path, const Listener& listener) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  const int64_t total = error ? 0 : static_cast<int64_t>(size);
  return sha256_of_file(path, [&](int64_t done) {
    listener.progress({Phase::kVerify, done, total});
  });
}

}  // namespace fmmformer::tasks::fetch
