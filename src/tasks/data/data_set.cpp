// SPDX-License-Identifier: Apache-2.0
#include "tasks/data/data_set.h"

#include <array>
#include <cstdio>
#include <stdexcept>

#include "tasks/image.h"
#include "tasks/listops.h"
#include "tasks/pathfinder.h"
#include "tasks/retrieval.h"
#include "tasks/text.h"

namespace fmmformer::tasks {

std::span<const DataSet* const> data_sets() {
  static constexpr std::array<const DataSet*, 5> kAll = {&kListopsData, &kTextData, &kRetrievalData,
                                                         &kImageData, &kPathfinderData};
  return kAll;
}

const DataSet& data_set(TaskName task) {
  for (const DataSet* data : data_sets()) {
    if (data->task == task) return *data;
  }
  throw std::invalid_argument("the task " + std::string(enum_name(task)) +
                              " has no data files: it makes its examples while it runs");
}

std::string byte_text(const DataSet& data, uint8_t byte) {
  if (!data.words.empty()) {
    return byte < data.words.size() ? std::string(data.words[byte]) : "?";
  }
  if (data.picture) return std::to_string(byte);
  if (byte >= 0x20 && byte < 0x7F) return std::string(1, static_cast<char>(byte));
  std::array<char, 8> text;
  std::snprintf(text.data(), text.size(), "\\x%02x", byte);
  return text.data();
}

}  // namespace fmmformer::tasks
