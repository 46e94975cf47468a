// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace fmmformer {

/// CRC-32C (Castagnoli) of the bytes; `before` is that of what came before them.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);
uint32_t crc32c(std::string_view text, uint32_t before = 0);

/// CRC-32C of a whole file. Throws std::runtime_error when it cannot be read.
uint32_t crc32c_of_file(const std::filesystem::path& path);

/// The form in which TFRecord files store a checksum, so that a checksum of data that holds
/// checksums stays useful.
constexpr uint32_t masked_crc(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U; }

}  // namespace fmmformer
