// SPDX-License-Identifier: Apache-2.0
#include "tasks/image.h"

#include "tasks/data/byte_source.h"
#include "tasks/data/grey_image.h"

namespace fmmformer::tasks {
namespace {

constexpr std::array<std::string_view, 10> kImageLabels = {
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"};
constexpr size_t kGreyRecord = 1 + kPixels, kColourRecord = 1 + 3 * kPixels;

void read_colour_records(std::string_view records, const std::filesystem::path& path,
                         CacheWriter& out) {
  std::string grey(kPixels, '\0');
  for (size_t record = 0; record < records.size() / kColourRecord; ++record) {
    const std::string_view bytes = records.substr(record * kColourRecord, kColourRecord);
    const auto value = [&](size_t channel, size_t pixel) {
      return static_cast<uint8_t>(bytes[1 + channel * kPixels + pixel]);
    };
    for (size_t i = 0; i < kPixels; ++i) {
      grey[i] = static_cast<char>(grey_of(value(0, i), value(1, i), value(2, i)));
    }
    out.add(grey, record_label(bytes[0], kImageLabels.size(), path, record));
  }
}

void read_image(const Source& source, CacheWriter& out) {
  const std::string records = read_whole(source.path);
  const bool grey = !records.empty() && records.size() % kGreyRecord == 0;
  const bool colour = !records.empty() && records.size() % kColourRecord == 0;
  // A size that fits both takes more than a thousand records of an odd number: no real file.
  if (grey && colour) {
    throw DataError(source.path.string() + ": " + std::to_string(records.size()) +
                    " bytes can be records of " + std::to_string(kColourRecord) +
                    " (CIFAR-10's binary form) or of " + std::to_string(kGreyRecord) +
                    " (grey); split the file, so that one of them fits");
  }
  if (!grey && !colour) {
    throw DataError(source.path.string() + ": " + std::to_string(records.size()) +
                    " bytes are no whole records of " + std::to_string(kColourRecord) +
                    " (CIFAR-10's binary form) or " + std::to_string(kGreyRecord) +
                    " (grey): it is cut off, or has pictures of another size; get it again");
  }
  grey ? read_grey_records(records, kImageLabels.size(), source.path, out)
       : read_colour_records(records, source.path, out);
}

}  // namespace

constinit const DataSet kImageData = {
    .task = TaskName::kImage,
    .about = "CIFAR-10 in grey: what is in the picture",
    .sources =
        "CIFAR-10's {data_batch_1..5,test_batch}.bin, or the same in grey: a label and 1024 "
        "bytes each",
    .labels = kImageLabels,
    .picture = true,
    .split = {.valid_share = 10},
    .read = read_image};

uint8_t grey_of(uint8_t red, uint8_t green, uint8_t blue) {
  const auto r = static_cast<float>(red), g = static_cast<float>(green),
             b = static_cast<float>(blue);
  const float sum = 0.2989F * r + 0.5870F * g + 0.1140F * b;
  return static_cast<uint8_t>(sum / 255.0F * 255.5F);
}

ImageTask::ImageTask(const PixelsConfig& config, uint64_t seed)
    : DataTask(kImageData, pixel_tokens(config), config.data, seed) {}

}  // namespace fmmformer::tasks
