// SPDX-License-Identifier: Apache-2.0
#include "train/named_tensors.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <unordered_map>

#include "fmmformer/core/named_enum.h"

namespace fmmformer::train {
namespace {

using TensorsByName = std::unordered_map<std::string_view, at::Tensor>;

TensorsByName by_name(const NamedTensors& tensors) {
  TensorsByName result;
  for (const auto& [name, tensor] : tensors) result.emplace(name, tensor);
  return result;
}

std::string did_you_mean(const std::string& name, const NamedTensors& among) {
  std::vector<std::string> names;
  for (const auto& [candidate, tensor] : among) names.push_back(candidate);
  const std::string near = nearest_name(name, names);
  return near.empty() ? "" : " (the nearest name is '" + near + "')";
}

constexpr const char* kWayOut =
    "; it was written by a model of another configuration: use that one";

}  // namespace

void copy_tensors(const NamedTensors& from, const NamedTensors& to, std::string_view what) {
  const TensorsByName sources = by_name(from);
  const TensorsByName targets = by_name(to);
  for (const auto& [name, target] : to) {
    const auto source = sources.find(name);
    TORCH_CHECK_VALUE(source != sources.end(), what, " lacks tensor '", name, "' of shape ",
                      target.sizes(), did_you_mean(name, from), kWayOut);
    TORCH_CHECK_VALUE(source->second.sizes() == target.sizes(), what, " has tensor '", name,
                      "' of shape ", source->second.sizes(), ", wanted is ", target.sizes(),
                      kWayOut);
    TORCH_CHECK_VALUE(source->second.scalar_type() == target.scalar_type(), what, " has tensor '",
                      name, "' of type ", source->second.scalar_type(), ", wanted is ",
                      target.scalar_type(), kWayOut);
  }
  for (const auto& [name, source] : from) {
    TORCH_CHECK_VALUE(targets.contains(name), what, " has tensor '", name, "' of shape ",
                      source.sizes(), ", which is not wanted here", did_you_mean(name, to),
                      kWayOut);
  }
  const at::NoGradGuard no_grad;
  for (const auto& [name, target] : to) target.detach().copy_(sources.at(name));
}

}  // namespace fmmformer::train
