// SPDX-License-Identifier: Apache-2.0
// Grey pictures of 32 x 32 pixels, one byte each, row by row: what two of the tasks are made of.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "tasks/data/cache.h"

namespace fmmformer::tasks {

inline constexpr int64_t kSide = 32;
inline constexpr int64_t kPixels = kSide * kSide;

/// Adds the pictures of records of one byte of label and kPixels of grey. `path` is what errors
/// call the bytes.
void read_grey_records(std::string_view records, size_t classes, const std::filesystem::path& path,
                       CacheWriter& out);

/// Throws DataError "PATH, record N (the first is 0): label ..." unless the label is one.
uint16_t record_label(char label, size_t classes, const std::filesystem::path& path, size_t record);

/// The kPixels grey values of a PNG. Throws DataError when it is none, in colour, or of another
/// size.
std::string read_png(const std::filesystem::path& path);

/// Draws a picture with squares of `scale` x `scale` for its pixels. Throws std::runtime_error when
/// the file cannot be written.
void write_png(const std::filesystem::path& path, std::string_view pixels, int64_t scale = 1);

}  // namespace fmmformer::tasks
