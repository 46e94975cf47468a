// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace fmmformer::tasks::fetch {

/// The SHA-256 of a file as 64 lower-case hexadecimal digits, as sha256sum prints it. `on_bytes` is
/// told how many bytes have been read so far. Throws std::runtime_error that names the file.
std::string sha256_of_file(const std::filesystem::path& path,
                           const std::function<void(int64_t)>& on_bytes = nullptr);

}  // namespace fmmformer::tasks::fetch
