// SPDX-License-Identifier: Apache-2.0
#include "tasks/data/grey_image.h"

#include <png.h>

#include <stdexcept>
#include <vector>

#include "fmmformer/core/atomic_file.h"
#include "tasks/data/byte_source.h"

namespace fmmformer::tasks {
namespace {

/// libpng's description of a picture, freed at the end of the scope.
struct PngImage : png_image {
  PngImage() : png_image{} { version = PNG_IMAGE_VERSION; }
  PngImage(const PngImage&) = delete;
  PngImage& operator=(const PngImage&) = delete;
  ~PngImage() { png_image_free(this); }
};

std::string form_of(const png_image& image) {
  return std::to_string(image.width) + " x " + std::to_string(image.height) +
         ((image.format & PNG_FORMAT_FLAG_COLOR) != 0 ? " in colour" : " in grey") +
         ((image.format & PNG_FORMAT_FLAG_ALPHA) != 0 ? " with transparency" : "");
}

std::string enlarged(std::string_view pixels, int64_t scale) {
  std::string out;
  for (int64_t y = 0; y < kSide * scale; ++y) {
    for (int64_t x = 0; x < kSide * scale; ++x) {
      out += pixels[static_cast<size_t>(y / scale * kSide + x / scale)];
    }
  }
  return out;
}

}  // namespace

uint16_t record_label(char label, size_t classes, const std::filesystem::path& path,
                      size_t record) {
  const auto number = static_cast<uint8_t>(label);
  if (number < classes) return number;
  throw DataError(path.string() + ", record " + std::to_string(record) +
                  " (the first is 0): label " + std::to_string(number) + ", allowed: 0.." +
                  std::to_string(classes - 1) +
                  "; check that the file belongs to this task, or get it again");
}

void read_grey_records(std::string_view records, size_t classes, const std::filesystem::path& path,
                       CacheWriter& out) {
  constexpr size_t kRecord = 1 + kPixels;
  if (records.empty() || records.size() % kRecord != 0) {
    throw DataError(path.string() + ": " + std::to_string(records.size()) +
                    " bytes are no whole records of " + std::to_string(kRecord) +
                    " (a label and 32 x 32 grey values): it is cut off, or has pictures of another "
                    "size; get it again");
  }
  for (size_t record = 0; record < records.size() / kRecord; ++record) {
    const std::string_view bytes = records.substr(record * kRecord, kRecord);
    out.add(bytes.substr(1), record_label(bytes[0], classes, path, record));
  }
}

std::string read_png(const std::filesystem::path& path) {
  const std::string file = read_whole(path);
  PngImage image;
  if (png_image_begin_read_from_memory(&image, file.data(), file.size()) == 0) {
    throw DataError("'" + path.string() + "' is no PNG (" + image.message + "); get it again");
  }
  const bool plain = (image.format & (PNG_FORMAT_FLAG_COLOR | PNG_FORMAT_FLAG_ALPHA)) == 0;
  if (image.width != kSide || image.height != kSide || !plain) {
    throw DataError("'" + path.string() + "' is " + form_of(image) +
                    ", wanted is 32 x 32 in grey; check that it belongs to this task");
  }
  image.format = PNG_FORMAT_GRAY;
  std::string pixels(kPixels, '\0');
  if (png_image_finish_read(&image, nullptr, pixels.data(), 0, nullptr) == 0) {
    throw DataError("'" + path.string() + "' is damaged (" + image.message + "); get it again");
  }
  return pixels;
}

void write_png(const std::filesystem::path& path, std::string_view pixels, int64_t scale) {
  const std::string large = enlarged(pixels, scale);
  PngImage image;
  image.width = image.height = static_cast<png_uint_32>(kSide * scale);
  image.format = PNG_FORMAT_GRAY;
  png_alloc_size_t size = 0;
  std::string file;
  const auto write = [&](void* to) {
    if (png_image_write_to_memory(&image, to, &size, 0, large.data(), 0, nullptr) == 0) {
      throw std::runtime_error("cannot make '" + path.string() + "': " + image.message);
    }
  };
  write(nullptr);  // says how much room it needs
  file.resize(size);
  write(file.data());
  file.resize(size);
  write_file_atomically(path, file);
}

}  // namespace fmmformer::tasks
