// SPDX-License-Identifier: Apache-2.0
#include "train/model_files.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "fmmformer/core/safetensors.h"
#include "train/checkpoint_store.h"
#include "train/progress.h"
#include "train/run_folder.h"
#include "train/tensor_file.h"

namespace fmmformer::train {
namespace {

namespace fs = std::filesystem;
using namespace nlohmann::literals;

/// "; beside it there is 'softmax.published'": other runs whose names begin alike up to the dot.
std::string runs_beside(const fs::path& folder) {
  const std::string model = folder.stem().string() + ".";
  std::set<std::string> names;
  std::error_code unreadable;
  for (const fs::directory_entry& other :
       fs::directory_iterator(folder.parent_path(), unreadable)) {
    const std::string name = other.path().filename().string();
    if (name.starts_with(model) && fs::exists(RunPaths(other.path()).config())) names.insert(name);
  }
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "; beside it there is '" : ", '") + name + "'";
  }
  return text;
}

struct ChosenStep {
  int64_t step = 0;
  std::string note;  // why it is not the one that was to be expected; else empty
};

[[noreturn]] void no_checkpoint(const fs::path& folder) {
  const auto record = RunPaths(folder).read_record();
  const std::string name = record.value("name", "");
  const bool finished = record.value("status", "") == enum_name(RunStatus::kFinished);
  throw std::invalid_argument(
      "'" + folder.string() +
      (finished
           ? "' holds a record without a model: its checkpoints were not kept; name a folder "
             "that has checkpoints/ or model.safetensors, or train it again (fmmformer train " +
                 (name.empty() ? "CONFIG" : name) + ")"
           : "' has no checkpoint yet; train it first (fmmformer train)"));
}

// The best checkpoint, else the last, of those whose weights are whole.
ChosenStep choose_step(const CheckpointStore& store, const fs::path& folder) {
  const GoodCheckpoint good = store.best_good();
  std::string damage;
  for (const SkippedCheckpoint& skipped : good.skipped) {
    damage += (damage.empty() ? "" : "; ") + std::string("the checkpoint of step ") +
              std::to_string(skipped.step) + " is damaged: " + skipped.reason;
  }
  if (!good.step && damage.empty()) no_checkpoint(folder);
  if (!good.step) {
    throw DamagedCheckpoint("no checkpoint of '" + folder.string() + "' is whole: " + damage +
                            "; restore one from a copy, or train it again");
  }
  if (damage.empty()) return {.step = *good.step};
  return {.step = *good.step,
          .note = damage + "; used instead is that of step " + std::to_string(*good.step) +
                  " (good are: " + steps_text(store.good_steps(CheckpointParts::kModel)) + ")"};
}

NamedTensors in_types_of(NamedTensors tensors, const NamedTensors& like) {
  for (auto& [name, tensor] : tensors) {
    const auto found =
        std::ranges::find_if(like, [&](const auto& entry) { return entry.first == name; });
    if (found != like.end()) tensor = tensor.to(found->second.scalar_type());
  }
  return tensors;
}

TrainedModel load_kept(const RunPaths& paths, std::optional<int64_t> step,
                       const c10::Device& device) {
  TrainedModel result{.experiment = load_run_experiment(paths.config())};
  const auto record = paths.read_record();
  result.step = record.value("/result/best_step"_json_pointer, int64_t{0});
  if (step && *step != result.step) {
    throw std::invalid_argument("'" + paths.folder().string() + "' keeps the model of step " +
                                std::to_string(result.step) + " alone, and not of " +
                                std::to_string(*step));
  }
  result.model = make_model(result.experiment.model, 0);
  load_weights(paths.kept_model(), *result.model);
  place_model(*result.model, device, result.experiment.train.precision);
  return result;
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

std::string load_weights(const fs::path& from, Model& model) {
  const NamedTensors parameters = parameters_of(model);
  NamedTensors tensors;
  ChosenStep chosen;
  if (fs::is_directory(from)) {
    const CheckpointStore store(RunPaths(from).checkpoints(), StoreAccess::kRead);
    chosen = choose_step(store, from);
    tensors = tensors_of(store.load(chosen.step, CheckpointParts::kModel).model);
  } else {
    tensors = tensors_of(read_safetensors(from));
  }
  copy_tensors(in_types_of(std::move(tensors), parameters), parameters,
               "the model of '" + from.string() + "'");
  return chosen.note;
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
  const RunPaths paths(folder);
  if (!fs::exists(paths.config())) {
    throw std::invalid_argument("'" + folder.string() +
                                "' is no run folder: it has no config.toml; `fmmformer train` "
                                "makes one" +
                                runs_beside(folder));
  }
  if (fs::exists(paths.kept_model())) return load_kept(paths, step, device);
  TrainedModel result{.experiment = load_run_experiment(paths.config())};
  const CheckpointStore store(paths.checkpoints(), StoreAccess::kRead);
  const ChosenStep chosen = step ? ChosenStep{.step = *step} : choose_step(store, folder);
  result.step = chosen.step;
  result.note = chosen.note;
  result.model = make_model(result.experiment.model, 0);
  place_model(*result.model, device, result.experiment.train.precision);
  copy_tensors(tensors_of(store.load(result.step, CheckpointParts::kModel).model),
               parameters_of(*result.model), "the checkpoint's model");
  return result;
}

}  // namespace fmmformer::train
