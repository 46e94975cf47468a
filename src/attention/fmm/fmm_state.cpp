// SPDX-License-Identifier: Apache-2.0
// The decoding state as a value and as a file.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <array>
#include <map>
#include <utility>

#include "attention/fmm/fmm_schema.h"
#include "attention/state_file.h"
#include "fmmformer/attention/fmm_decode.h"

namespace fmmformer {
namespace {

using at::Tensor;

// Version 1 did not say which feature maps its sums are of.
constexpr StateKind kKind{"FmmState", "2", "fmm_attention_prefill"};

// The fields of a state with their names in the file, in the order of the struct.
template <typename State>
auto fields(State& state) {
  return std::array<std::pair<const char*, decltype(&state.keys)>, 6>{
      {{"keys", &state.keys},
       {"values", &state.values},
       {"live", &state.live},
       {"far_sums", &state.far_sums},
       {"far_key_sums", &state.far_key_sums},
       {"position", &state.position}}};
}

std::string map_key(size_t number) { return "feature_map." + std::to_string(number); }

std::vector<std::string> map_names(const FmmState& state) {
  std::vector<std::string> names;
  for (const FeatureMap map : state.feature_maps) names.emplace_back(enum_name(map));
  return names;
}

// The tensors of a state must fit each other, or a step would read beyond them.
void check_loaded(const StateFile& file, const FmmState& state) {
  file.check_fit(state.keys.dim() == 4 && state.values.dim() == 4 && state.live.dim() == 2 &&
                 state.far_sums.dim() == 5 && state.far_key_sums.dim() == 4 &&
                 state.position.numel() == 1);
  file.check_fit(state.values.sizes().slice(0, 3) == state.keys.sizes().slice(0, 3) &&
                 state.live.sizes() == state.keys.sizes().slice(0, 2));
  file.check_fit(state.far_key_sums.sizes() == state.far_sums.sizes().slice(0, 4) &&
                 state.far_sums.size(0) == state.keys.size(0) &&
                 state.far_sums.size(1) == state.keys.size(2) &&
                 state.far_sums.size(3) == state.keys.size(3) &&
                 state.far_sums.size(4) == state.values.size(3) &&
                 state.far_sums.size(2) == static_cast<int64_t>(state.feature_maps.size()));
  file.check_fit(state.live.scalar_type() == at::kBool &&
                 state.position.scalar_type() == at::kLong &&
                 state.values.scalar_type() == state.keys.scalar_type() &&
                 at::isFloatingType(state.keys.scalar_type()));
  const at::ScalarType sums = state.keys.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  file.check_fit(state.far_sums.scalar_type() == sums && state.far_key_sums.scalar_type() == sums);
  file.check_fit(state.position.item<int64_t>() >= 0);
}

}  // namespace

FmmState FmmState::to(const at::Device& device) const {
  FmmState moved = *this;
  for (auto& [name, tensor] : fields(moved)) *tensor = tensor->to(device);
  return moved;
}

FmmState FmmState::clone() const {
  FmmState copy = *this;
  for (auto& [name, tensor] : fields(copy)) *tensor = tensor->clone();
  return copy;
}

void FmmState::save(const std::string& path) const {
  std::vector<std::pair<const char*, Tensor>> tensors;
  for (const auto& [name, tensor] : fields(*this)) tensors.emplace_back(name, *tensor);
  std::map<std::string, std::string> metadata = {
      {"unit_features", unit_features ? "true" : "false"}};
  const std::vector<std::string> names = map_names(*this);
  for (size_t number = 0; number < names.size(); ++number)
    metadata[map_key(number)] = names[number];
  write_state_file(kKind, path, tensors, std::move(metadata));
}

FmmState FmmState::load(const std::string& path) {
  const StateFile file(kKind, path);
  FmmState state;
  std::vector<std::string> names;
  for (std::string name; !(name = file.entry(map_key(names.size()))).empty();)
    names.push_back(name);
  state.feature_maps = feature_maps_from_names(file.where().c_str(), names);
  state.unit_features = file.flag("unit_features");
  for (auto& [name, tensor] : fields(state)) *tensor = file.tensor(name);
  check_loaded(file, state);
  return state;
}

namespace {

void save_op(const std::string& path, at::TensorList tensors,
             const std::vector<std::string>& feature_maps, bool unit_features) {
  FmmState state;
  state.feature_maps = feature_maps_from_names("FmmState.save", feature_maps);
  state.unit_features = unit_features;
  TORCH_CHECK_VALUE(tensors.size() == 6, "fmm_state_save: got ", tensors.size(),
                    " tensors; allowed are the six of an FmmState");
  size_t index = 0;
  for (auto& [name, tensor] : fields(state)) *tensor = tensors[index++];
  state.save(path);
}

std::tuple<std::vector<Tensor>, std::vector<std::string>, bool> load_op(const std::string& path) {
  const FmmState state = FmmState::load(path);
  std::vector<Tensor> tensors;
  for (const auto& [name, tensor] : fields(state)) tensors.push_back(*tensor);
  return {tensors, map_names(state), state.unit_features};
}

TORCH_LIBRARY_FRAGMENT(fmmformer, m) {
  m.def("fmm_state_save(str path, Tensor[] tensors, str[] feature_maps, bool unit_features) -> ()");
  m.def("fmm_state_load(str path) -> (Tensor[] tensors, str[] feature_maps, bool unit_features)",
        &load_op);
}
TORCH_LIBRARY_IMPL(fmmformer, CompositeExplicitAutograd, m) { m.impl("fmm_state_save", &save_op); }

}  // namespace
}  // namespace fmmformer
