// SPDX-License-Identifier: Apache-2.0
// Files that are there whole or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace fmmformer {

/// Writes `bytes` to a temporary name in the same folder, syncs it to the disk and renames it to
/// `path`. A crash or a full disk at any moment leaves either the old file or the new one, never a
/// part. Throws std::runtime_error, naming the path, the cause and the way out, when the file
/// cannot be written; the temporary is removed then.
void write_file_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes);
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

/// The same for a file made of several pieces, which need not lie together in memory.
void write_file_atomically(const std::filesystem::path& path,
                           std::span<const std::span<const std::byte>> pieces);

}  // namespace fmmformer
