// SPDX-License-Identifier: Apache-2.0
#include "train/model_files.h"

#include <ATen/ATen.h>

#include <stdexcept>

#include "fmmformer/core/safetensors.h"
#include "train/checkpoint_store.h"
#include "train/tensor_file.h"

namespace fmmformer::train {
namespace {

namespace fs = std::filesystem;

int64_t chosen_step(const CheckpointStore& store, const fs::path& folder,
                    std::optional<int64_t> step) {
  if (!step) step = store.best();
  if (!step) step = store.latest_good().step;
  if (!step) {
    throw std::invalid_argument("'" + folder.string() +
                                "' has no good checkpoint; train it first (fmmformer train)");
  }
  return *step;
}

NamedTensors in_types_of(NamedTensors tensors, const NamedTensors& like) {
  for (auto& [name, tensor] : tensors) {
    const auto found =
        std::ranges::find_if(like, [&](const auto& entry) { return entry.first == name; });
    if (found != like.end()) tensor = tensor.to(found->second.scalar_type());
  }
  return tensors;
}

}  // namespace

NamedTensors parameters_of(const Model& model) {
  NamedTensors parameters;
  for (const auto& entry : model.named_parameters())
    parameters.emplace_back(entry.key(), entry.value());
  return parameters;
}

void place_model(Model& model, const c10::Device& device, Precision precision) {
  model.to(device);
  if (precision == Precision::kBf16) model.to(at::kBFloat16);
}

void load_weights(const fs::path& from, Model& model) {
  const NamedTensors parameters = parameters_of(model);
  NamedTensors tensors;
  if (fs::is_directory(from)) {
    const CheckpointStore store(from / "checkpoints", StoreAccess::kRead);
    tensors = tensors_of(
        store.load(chosen_step(store, from, std::nullopt), CheckpointParts::kModel).model);
  } else {
    tensors = tensors_of(read_safetensors(from));
  }
  copy_tensors(in_types_of(std::move(tensors), parameters), parameters,
               "the weights of '" + from.string() + "'");
}

std::string first_tensor_not_finite(const NamedTensors& parameters) {
  at::NoGradGuard no_gradient;
  const auto is_bad = [](const at::Tensor& tensor) {
    return tensor.defined() && !at::isfinite(tensor).all().item<bool>();
  };
  for (const auto& [name, parameter] : parameters) {
    if (is_bad(parameter)) return name;
  }
  for (const auto& [name, parameter] : parameters) {
    if (is_bad(parameter.grad())) return "the gradient of " + name;
  }
  return "";
}

TrainedModel load_run(const fs::path& folder, std::optional<int64_t> step,
                      const c10::Device& device) {
  if (!fs::exists(folder / "config.toml")) {
    throw std::invalid_argument("'" + folder.string() +
                                "' is no run folder: it has no config.toml; `fmmformer train` "
                                "makes one");
  }
  TrainedModel result{.experiment = load_experiment(folder / "config.toml")};
  const CheckpointStore store(folder / "checkpoints", StoreAccess::kRead);
  result.step = chosen_step(store, folder, step);
  result.model = make_model(result.experiment.model, 0);
  place_model(*result.model, device, result.experiment.train.precision);
  copy_tensors(tensors_of(store.load(result.step, CheckpointParts::kModel).model),
               parameters_of(*result.model), "the checkpoint's model");
  return result;
}

}  // namespace fmmformer::train
