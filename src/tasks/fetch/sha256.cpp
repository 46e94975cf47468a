// SPDX-License-Identifier: Apache-2.0
#include "tasks/fetch/sha256.h"

#include <openssl/evp.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <vector>

#include "tasks/fetch/file_error.h"

namespace fmmformer::tasks::fetch {
namespace {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
struct FreeContext {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

std::string hexadecimal(const unsigned char* bytes, unsigned count) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (unsigned i = 0; i < count; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

}  // namespace

std::string sha256_of_file(const std::filesystem::path& path,
                           const std::function<void(int64_t)>& on_bytes) {
  const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "rbe"));
  if (file == nullptr) fail(path, "read", errno);
  const std::unique_ptr<EVP_MD_CTX, FreeContext> context(EVP_MD_CTX_new());
  if (context == nullptr || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1) {
    throw std::runtime_error("OpenSSL has no SHA-256 on this machine");
  }
  std::vector<unsigned char> buffer(1 << 20);
  int64_t read = 0;
  while (const size_t count = std::fread(buffer.data(), 1, buffer.size(), file.get())) {
    EVP_DigestUpdate(context.get(), buffer.data(), count);
    read += static_cast<int64_t>(count);
    if (on_bytes) on_bytes(read);
  }
  if (std::ferror(file.get()) != 0) fail(path, "read", errno);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned length = 0;
  EVP_DigestFinal_ex(context.get(), digest.data(), &length);
  return hexadecimal(digest.data(), length);
}

}  // namespace fmmformer::tasks::fetch
