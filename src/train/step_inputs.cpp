// SPDX-License-Identifier: Apache-2.0
#include "train/step_inputs.h"

#include <ATen/ATen.h>

#include <cstring>

#include "attention/or_nothing.h"

namespace fmmformer::train {
namespace {

using at::Tensor;

constexpr int64_t kAlignment = 64;  // of every array: a line of cache, and any vector load

template <typename T>
void check_entries(const char* name, const std::vector<T>& values, at::IntArrayRef sizes) {
  TORCH_CHECK_VALUE(static_cast<int64_t>(values.size()) == c10::multiply_integers(sizes),
                    "batch: ", name, " has ", values.size(), " entries; wanted ",
                    c10::multiply_integers(sizes), " for ", sizes);
}

void copy_bytes(void* block, int64_t offset, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(static_cast<char*>(block) + offset, from, bytes);
}

template <typename T>
void copy_array(void* block, int64_t offset, const std::vector<T>& values) {
  copy_bytes(block, offset, values.data(), values.size() * sizeof(T));
}

}  // namespace

StepLayout::StepLayout(const StepBatches& batches) {
  for (const Batch& batch : batches) parts_.push_back(place_part(batch));
  counted_ = place(at::kFloat, {});
  update_ = place(at::kDouble, {kFactorCount});
}

StepLayout::Field StepLayout::place(at::ScalarType type, std::vector<int64_t> sizes) {
  const int64_t bytes =
      c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(type));
  Field field{.type = type, .sizes = std::move(sizes), .offset = bytes_};
  bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return field;
}

StepLayout::Part StepLayout::place_part(const Batch& batch) {
  const std::vector<int64_t> grid = {batch.size, batch.length};
  const std::vector<int64_t> target_sizes =
      batch.predicts_tokens() ? grid : std::vector<int64_t>{batch.size};
  const auto tokens = [&](const char* name, const std::vector<int64_t>& values,
                          const std::vector<int64_t>& sizes) {
    check_entries(name, values, sizes);
    return place(at::kLong, sizes);
  };
  const auto mask = [&](const char* name, const std::vector<uint8_t>& values,
                        const std::vector<int64_t>& sizes) {
    if (values.empty()) return Field{};
    check_entries(name, values, sizes);
    return place(at::kBool, sizes);
  };
  Part part{.size = batch.size, .length = batch.length};
  part.tokens = tokens("tokens", batch.tokens, grid);
  part.token_mask = mask("token_mask", batch.token_mask, grid);
  if (batch.is_pair()) {
    part.other_tokens = tokens("other_tokens", batch.other_tokens, grid);
    part.other_token_mask = mask("other_token_mask", batch.other_token_mask, grid);
  }
  part.targets = tokens("targets", batch.targets, target_sizes);
  part.target_mask = mask("target_mask", batch.target_mask, target_sizes);
  part.seed = place(at::kLong, {1});
  return part;
}

void StepLayout::write(const StepBatches& batches, const StepNumbers& numbers, void* block) const {
  TORCH_INTERNAL_ASSERT(batches.size() == parts_.size() &&
                        numbers.dropout_seeds.size() == parts_.size());
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Batch& batch = batches[i];
    const Part& part = parts_[i];
    copy_array(block, part.tokens.offset, batch.tokens);
    copy_array(block, part.token_mask.offset, batch.token_mask);
    copy_array(block, part.other_tokens.offset, batch.other_tokens);
    copy_array(block, part.other_token_mask.offset, batch.other_token_mask);
    copy_array(block, part.targets.offset, batch.targets);
    copy_array(block, part.target_mask.offset, batch.target_mask);
    copy_bytes(block, part.seed.offset, &numbers.dropout_seeds[i], sizeof(int64_t));
  }
  copy_bytes(block, counted_.offset, &numbers.counted, sizeof(numbers.counted));
  copy_bytes(block, update_.offset, &numbers.update, sizeof(numbers.update));
}

Tensor StepLayout::view(const Tensor& block, const Field& field) {
  if (field.type == at::ScalarType::Undefined) return Tensor();
  const int64_t bytes =
      c10::multiply_integers(field.sizes) * static_cast<int64_t>(c10::elementSize(field.type));
  return block.narrow(0, field.offset, bytes).view(field.type).view(field.sizes);
}

StepInputs StepLayout::views(const Tensor& block) const {
  StepInputs inputs{.counted = view(block, counted_), .update = view(block, update_)};
  for (const Part& part : parts_) {
    BatchTensors batch;
    batch.inputs = {.tokens = view(block, part.tokens),
                    .token_mask = or_nothing(view(block, part.token_mask)),
                    .other_tokens = view(block, part.other_tokens),
                    .other_token_mask = or_nothing(view(block, part.other_token_mask))};
    batch.targets = view(block, part.targets);
    batch.target_mask = or_nothing(view(block, part.target_mask));
    inputs.parts.push_back(std::move(batch));
    inputs.dropout_seeds.push_back(view(block, part.seed));
  }
  return inputs;
}

std::string StepLayout::text() const {
  if (parts_.empty()) return "nothing";
  std::string text = parts_.size() > 1 ? std::to_string(parts_.size()) + " x " : "";
  const Part& first = parts_.front();
  return text.append("[").append(std::to_string(first.size)) + ", " + std::to_string(first.length) +
         "]";
}

}  // namespace fmmformer::train
