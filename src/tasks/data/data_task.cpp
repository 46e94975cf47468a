// SPDX-License-Identifier: Apache-2.0
#include "tasks/data/data_task.h"

#include <algorithm>
#include <stdexcept>

#include "fmmformer/core/random.h"
#include "tasks/data/grey_image.h"
#include "tasks/data/permutation.h"

namespace fmmformer::tasks {

TokenShape pixel_tokens(const PixelsConfig& config) {
  return {.length = kPixels,
          .bytes = kPixels,
          .vocabulary = 512,
          .first_token = config.mask_black_pixels ? 0 : 1};
}

DataTask::DataTask(const DataSet& data, const TokenShape& shape, std::filesystem::path folder,
                   uint64_t seed)
    : data_(data), shape_(shape), folder_(std::move(folder)), seed_(seed) {
  if (shape.bytes > shape.length) {
    throw std::invalid_argument("task." + std::string(enum_name(data.task)) + ".bytes is " +
                                std::to_string(shape.bytes) + ", allowed is up to its length, " +
                                std::to_string(shape.length));
  }
}

const DataCache& DataTask::cache(Split split) const {
  const std::lock_guard lock(opening_);
  auto& opened = caches_[static_cast<size_t>(split)];
  if (!opened) opened = std::make_unique<const DataCache>(folder_, data_.task, split);
  return *opened;
}

DataTask::Place DataTask::place_of(const BatchRequest& request, int64_t row, int64_t count) const {
  const int64_t position = request.index * request.size + row;
  if (request.order == Order::kStored) {
    return {std::min(position, count - 1), position < count};
  }
  const uint64_t key = derive_seed(seed_, "shuffle", position / count);
  const Permutation order(static_cast<uint64_t>(count), key);
  return {static_cast<int64_t>(order(static_cast<uint64_t>(position % count))), true};
}

// Tokens and mask are zeros when this begins.
void DataTask::write_document(std::string_view document, int64_t* tokens, uint8_t* mask) const {
  const auto count = std::min(document.size(), static_cast<size_t>(shape_.bytes));
  for (size_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<uint8_t>(document[i]) + shape_.first_token;
    mask[i] = tokens[i] != 0;
  }
}

Batch DataTask::batch(const BatchRequest& request) const {
  const DataCache& cache = this->cache(request.split);
  Batch batch{.size = request.size, .length = shape_.length};
  const auto count = static_cast<size_t>(request.size * shape_.length);
  batch.tokens.resize(count), batch.token_mask.resize(count);
  if (data_.pair) batch.other_tokens.resize(count), batch.other_token_mask.resize(count);
  // All batches of an order have the same arrays, the last one too: what was captured for one fits
  // the next.
  if (request.order == Order::kStored) batch.target_mask.resize(static_cast<size_t>(request.size));
  for (int64_t row = 0; row < request.size; ++row) {
    const auto [index, counts] = place_of(request, row, cache.examples());
    const Example example = cache.example(index);
    const int64_t offset = row * shape_.length;
    write_document(cache.document(example.first), batch.tokens.data() + offset,
                   batch.token_mask.data() + offset);
    if (data_.pair) {
      write_document(cache.document(example.second), batch.other_tokens.data() + offset,
                     batch.other_token_mask.data() + offset);
    }
    batch.targets.push_back(example.label);
    if (request.order == Order::kStored) batch.target_mask[static_cast<size_t>(row)] = counts;
  }
  return batch;
}

std::string DataTask::token_text(int64_t token) const {
  if (token < shape_.first_token) return "";  // padding
  return byte_text(data_, static_cast<uint8_t>(token - shape_.first_token));
}

}  // namespace fmmformer::tasks
