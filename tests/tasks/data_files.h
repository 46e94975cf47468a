// SPDX-License-Identifier: Apache-2.0
// Small data files for tests, and what errors say about bad ones.
#pragma once

#include <lzma.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tasks/data/data_set.h"

namespace fmmformer::tasks {

inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

inline std::string packed_xz(std::string_view bytes) {
  std::string out(lzma_stream_buffer_bound(bytes.size()), '\0');
  size_t size = 0;
  if (lzma_easy_buffer_encode(
          1, LZMA_CHECK_CRC32, nullptr, reinterpret_cast<const uint8_t*>(bytes.data()),
          bytes.size(), reinterpret_cast<uint8_t*>(out.data()), &size, out.size()) != LZMA_OK) {
    throw std::logic_error("packed_xz");
  }
  out.resize(size);
  return out;
}

inline std::string packed_gz(std::string_view bytes) {
  z_stream stream{};
  deflateInit2(&stream, 1, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, bytes.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  if (deflate(&stream, Z_FINISH) != Z_STREAM_END) throw std::logic_error("packed_gz");
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

/// What a DataError says; "" when nothing is thrown.
template <typename Function>
std::string error_of(const Function& function) {
  try {
    function();
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

/// What is read from a source, or the error of it.
inline CacheWriter read_source(const DataSet& data, const Source& source) {
  CacheWriter out;
  data.read(source, out);
  return out;
}
inline std::string read_error(const DataSet& data, const Source& source) {
  return error_of([&] { read_source(data, source); });
}

/// A picture behind its label, as packed files have them.
inline std::string record(int label, const std::string& pixels) {
  std::string out(1, static_cast<char>(label));
  return out += pixels;
}

inline std::vector<int> bytes_of(std::string_view text) {
  std::vector<int> bytes;
  for (const char c : text) bytes.push_back(static_cast<uint8_t>(c));
  return bytes;
}

}  // namespace fmmformer::tasks
