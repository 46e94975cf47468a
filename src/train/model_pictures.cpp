// SPDX-License-Identifier: Apache-2.0
#include "train/model_pictures.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "fmmformer/core/base64.h"
#include "fmmformer/models/attention_capture.h"
#include "fmmformer/models/batch_tensors.h"

namespace fmmformer::train {
namespace {

using Json = nlohmann::ordered_json;

int64_t tokens_per_cell(int64_t length, int64_t cells) { return (length + cells - 1) / cells; }

// The largest of every cell of tokens: a thin diagonal stays one.
at::Tensor pooled_to_cells(const at::Tensor& matrix, int64_t cells_a_side) {
  const int64_t tokens = tokens_per_cell(matrix.size(0), cells_a_side);
  if (tokens == 1) return matrix;
  return at::max_pool2d(matrix.unsqueeze(0).unsqueeze(0), tokens, tokens, 0, 1, /*ceil_mode=*/true)
      .squeeze(0)
      .squeeze(0);
}

// In 255 steps between the lowest and the highest: enough for the eye, a hundredth of the text.
Json picture_of(const at::Tensor& matrix, int64_t cells_a_side) {
  const at::Tensor cells =
      pooled_to_cells(matrix.to(at::kCPU, at::kDouble), cells_a_side).contiguous();
  const double low = cells.min().item<double>(), high = cells.max().item<double>();
  std::vector<uint8_t> levels(static_cast<size_t>(cells.numel()));
  const double* values = cells.const_data_ptr<double>();
  for (size_t i = 0; i < levels.size(); ++i) {
    levels[i] =
        static_cast<uint8_t>(high > low ? std::lround(255 * (values[i] - low) / (high - low)) : 0);
  }
  return {{"rows", cells.size(0)},
          {"columns", cells.size(1)},
          {"low", low},
          {"high", high},
          {"base64", base64_encoded(levels)}};
}

void add_maps_of_layer(const AttentionRecord& record, int64_t cells, Json& heads) {
  for (int64_t head = 0; head < record.inputs.q.size(2); ++head) {
    const AttentionMaps maps = attention_maps(record, 0, head);
    Json entry = {{"layer", record.layer}, {"head", head}};
    if (record.options.window) entry["near"] = picture_of(maps.near, cells);
    if (maps.far.size(0) > 0) entry["far"] = picture_of(maps.far.sum(0), cells);
    entry["blend"] = picture_of(maps.blended, cells);
    heads.push_back(std::move(entry));
  }
}

Json numbers_of(const at::Tensor& tensor) {
  if (tensor.dim() == 0) return tensor.item<double>();
  Json list = Json::array();
  for (int64_t i = 0; i < tensor.size(0); ++i) list.push_back(numbers_of(tensor[i]));
  return list;
}

// Weights as [heads, 1 or Dv] and [maps, heads, 1 or Dv], whatever they broadcast from.
Json blend_of_layer(const AttentionRecord& record) {
  Json entry = {{"layer", record.layer}};
  const int64_t heads = record.inputs.q.size(2);
  if (const auto& near = record.weights.near_weight) {
    const at::Tensor plain = near->detach().to(at::kCPU, at::kDouble);
    const int64_t channels = plain.dim() == 0 ? 1 : plain.size(-1);
    entry["near"] = numbers_of(plain.expand({heads, channels}));
  }
  if (const auto& far = record.weights.far_weight) {
    const at::Tensor plain = far->detach().to(at::kCPU, at::kDouble);
    const int64_t channels = plain.dim() == 0 ? 1 : plain.size(-1);
    Json names = Json::array();
    if (record.fast) {
      names.push_back("fast weights, " + std::string(enum_name(record.fast->options.feature_map)));
    }
    for (const FeatureMap map : record.options.feature_maps) names.push_back(enum_name(map));
    entry["far"] = numbers_of(plain.expand({std::ssize(names), heads, channels}));
    entry["feature_maps"] = std::move(names);
  }
  return entry;
}

// A token for every cell, or the tokens that share one.
Json cell_texts(const tasks::Task& task, const Batch& example, int64_t length, int64_t cells) {
  Json texts = Json::array();
  const int64_t per_cell = tokens_per_cell(length, cells);
  for (int64_t i = 0; i < length; i += per_cell) {
    std::string text;
    for (int64_t j = i; j < std::min(i + per_cell, length); ++j) {
      if (j > i) text += " ";
      text += task.token_text(example.tokens[static_cast<size_t>(j)]);
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

}  // namespace

Json pictures_of(const Model& model, const tasks::Task& task, const Batch& example,
                 const c10::Device& device, const PictureOptions& options) {
  at::NoGradGuard no_gradient;
  const ModelInputs inputs = first_tokens(batch_tensors(example, device).inputs,
                                          std::min(options.longest, example.real_length()));
  Json heads = Json::array(), blend = Json::array();
  for (const AttentionRecord& record : capture_attention(model, inputs)) {
    add_maps_of_layer(record, options.cells, heads);
    if (record.weights.near_weight || record.weights.far_weight)
      blend.push_back(blend_of_layer(record));
  }
  Json pictures = {{"maps",
                    {{"tokens", cell_texts(task, example, inputs.tokens.size(1), options.cells)},
                     {"heads", std::move(heads)}}}};
  if (!blend.empty()) pictures["blend"] = std::move(blend);
  return pictures;
}

void add_pictures(const Model& model, const tasks::Task& task, const c10::Device& device,
                  RunRecorder& recorder) {
  const Batch example = task.batch({.split = tasks::Split::kValid, .size = 1});
  Json pictures = pictures_of(model, task, example, device);
  for (auto& [member, picture] : pictures.items()) recorder.set(member, std::move(picture));
}

}  // namespace fmmformer::train
