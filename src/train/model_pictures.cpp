// SPDX-License-Identifier: Apache-2.0
#include "train/model_pictures.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "fmmformer/models/attention_capture.h"
#include "train/batch_tensors.h"

namespace fmmformer::train {
namespace {

using Json = nlohmann::ordered_json;

std::string base64(const std::vector<uint8_t>& bytes) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j) group = group << 8 | (i + j < bytes.size() ? bytes[i + j] : 0);
    for (size_t j = 0; j < 4; ++j) {
      text += i + j > bytes.size() ? '=' : kDigits[group >> (18 - 6 * j) & 63];
    }
  }
  return text;
}

// Magnitudes in 255 steps of the largest: enough for the eye, a hundredth of the text.
Json picture_of(const at::Tensor& matrix) {
  const at::Tensor magnitude = matrix.abs().to(at::kDouble).contiguous();
  const double largest = magnitude.max().item<double>();
  std::vector<uint8_t> bytes(static_cast<size_t>(magnitude.numel()));
  const double* values = magnitude.const_data_ptr<double>();
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<uint8_t>(largest > 0 ? std::lround(255 * values[i] / largest) : 0);
  }
  return {{"rows", magnitude.size(0)},
          {"columns", magnitude.size(1)},
          {"max", largest},
          {"base64", base64(bytes)}};
}

void add_maps_of_layer(const AttentionRecord& record, Json& heads) {
  for (int64_t head = 0; head < record.inputs.q.size(2); ++head) {
    const AttentionMaps maps = attention_maps(record, 0, head);
    Json entry = {{"layer", record.layer}, {"head", head}};
    if (record.options.window) entry["near"] = picture_of(maps.near);
    if (maps.far.size(0) > 0) entry["far"] = picture_of(maps.far.sum(0));
    entry["blend"] = picture_of(maps.blended);
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
    const auto maps = static_cast<int64_t>(record.options.feature_maps.size());
    entry["far"] = numbers_of(plain.expand({maps, heads, channels}));
    Json names = Json::array();
    for (const FeatureMap map : record.options.feature_maps) names.push_back(enum_name(map));
    entry["feature_maps"] = std::move(names);
  }
  return entry;
}

ModelInputs cut(ModelInputs inputs) {
  const auto shorten = [](const at::Tensor& tensor) {
    return tensor.size(1) > kLongestMap ? tensor.slice(1, 0, kLongestMap) : tensor;
  };
  inputs.tokens = shorten(inputs.tokens);
  if (inputs.token_mask) inputs.token_mask = shorten(*inputs.token_mask);
  if (inputs.other_tokens.defined()) inputs.other_tokens = shorten(inputs.other_tokens);
  if (inputs.other_token_mask) inputs.other_token_mask = shorten(*inputs.other_token_mask);
  return inputs;
}

}  // namespace

void add_pictures(const Model& model, const tasks::Task& task, const c10::Device& device,
                  RunRecorder& recorder) {
  at::NoGradGuard no_gradient;
  const Batch example = task.batch({.split = tasks::Split::kValid, .size = 1});
  const ModelInputs inputs = cut(to_tensors(example, device).inputs);
  Json heads = Json::array(), blend = Json::array();
  for (const AttentionRecord& record : capture_attention(model, inputs)) {
    add_maps_of_layer(record, heads);
    blend.push_back(blend_of_layer(record));
  }
  Json tokens = Json::array();
  for (int64_t i = 0; i < inputs.tokens.size(1); ++i) {
    tokens.push_back(task.token_text(example.tokens[static_cast<size_t>(i)]));
  }
  recorder.set("maps", {{"tokens", std::move(tokens)}, {"heads", std::move(heads)}});
  recorder.set("blend", std::move(blend));
}

}  // namespace fmmformer::train
