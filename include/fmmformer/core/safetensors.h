// SPDX-License-Identifier: Apache-2.0
// The safetensors format: named tensors and text metadata in one file, without torch. The file is
//   8 bytes    length of the header, little-endian
//   header     JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...},
//              padded with spaces so that the data begins at a multiple of 8
//   data       the tensors' bytes, row-major, little-endian, one after the other without holes
// and the header's "__metadata__" holds texts by name; we add a checksum of the data there and
// check it when reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fmmformer {

/// A tensor read from a file. `dtype` is one of F64 F32 F16 BF16 I64 I32 U8 BOOL.
struct SafeTensor {
  std::string dtype;
  std::vector<int64_t> shape;  // empty: a scalar
  std::vector<std::byte> data;
};

/// A tensor to be written; `data` belongs to the caller.
struct SafeTensorView {
  std::string dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};

struct SafeTensorsFile {
  std::vector<std::pair<std::string, SafeTensor>> tensors;  // in the order of the file
  std::map<std::string, std::string> metadata;
  bool checksummed = false;  // the file carried our checksum, and it was right

  /// The tensor called `name`, or nullptr.
  const SafeTensor* find(std::string_view name) const;
};

/// Bytes of one element. Throws std::invalid_argument for an unknown dtype.
int64_t safetensors_element_size(std::string_view dtype);

/// Writes whole or not at all (atomic_file.h). In the file wide elements come before narrow ones,
/// and otherwise the given order holds: every tensor is then aligned to its elements. Throws
/// std::invalid_argument for a tensor that does not fit its shape, a repeated or reserved name;
/// std::runtime_error when the file cannot be written.
void write_safetensors(const std::filesystem::path& path,
                       const std::vector<std::pair<std::string, SafeTensorView>>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

/// Reads and checks the whole file. Throws std::invalid_argument, naming the file, what is wrong
/// with it and what to do, for a file that is missing, cut short, damaged, too long or of another
/// kind.
SafeTensorsFile read_safetensors(const std::filesystem::path& path);

}  // namespace fmmformer
