// SPDX-License-Identifier: Apache-2.0
// The decoding state as a value and as a file.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <array>
#include <utility>

#include "attention/fmm/fmm_schema.h"
#include "attention/state_file.h"
#include "fmmformer/attention/fast_weight_decode.h"

namespace fmmformer {
namespace {

using at::Tensor;

constexpr StateKind kKind{"FastWeightState", "2", "fast_weight_attention_prefill"};

// The fields of a state with their names in the file, in the order of the struct.
template <typename State>
auto fields(State& state) {
  return std::array<std::pair<const char*, decltype(&state.memory)>, 3>{
      {{"memory", &state.memory}, {"key_sums", &state.key_sums}, {"tokens", &state.tokens}}};
}

// The tensors of a state must fit each other, or a step would read beyond them.
void check_loaded(const StateFile& file, const FastWeightState& state) {
  file.check_fit(state.memory.dim() == 4 && state.key_sums.dim() == 3 && state.tokens.dim() == 1);
  file.check_fit(state.key_sums.sizes() == state.memory.sizes().slice(0, 3) &&
                 state.tokens.size(0) == state.memory.size(0));
  const at::ScalarType sums = state.memory.scalar_type();
  file.check_fit((sums == at::kDouble || sums == at::kFloat) &&
                 state.key_sums.scalar_type() == sums && state.tokens.scalar_type() == at::kLong);
  file.check_fit(state.tokens.ge(0).all().item<bool>());
}

}  // namespace

FastWeightState FastWeightState::to(const at::Device& device) const {
  FastWeightState moved = *this;
  for (auto& [name, tensor] : fields(moved)) *tensor = tensor->to(device);
  return moved;
}

FastWeightState FastWeightState::clone() const {
  FastWeightState copy = *this;
  for (auto& [name, tensor] : fields(copy)) *tensor = tensor->clone();
  return copy;
}

void FastWeightState::save(const std::string& path) const {
  std::vector<std::pair<const char*, Tensor>> tensors;
  for (const auto& [name, tensor] : fields(*this)) tensors.emplace_back(name, *tensor);
  write_state_file(kKind, path, tensors,
                   {{"feature_map", std::string(enum_name(feature_map))},
                    {"unit_features", unit_features ? "true" : "false"},
                    {"normaliser", std::string(enum_name(normaliser))}});
}

FastWeightState FastWeightState::load(const std::string& path) {
  const StateFile file(kKind, path);
  FastWeightState state;
  state.feature_map = feature_maps_from_names(file.where().c_str(), {file.entry("feature_map")})[0];
  state.unit_features = file.flag("unit_features");
  state.normaliser =
      fast_weight_normaliser_from_name(file.where().c_str(), file.entry("normaliser"));
  for (auto& [name, tensor] : fields(state)) *tensor = file.tensor(name);
  check_loaded(file, state);
  return state;
}

namespace {

void save_op(const std::string& path, at::TensorList tensors, const std::string& feature_map,
             bool unit_features, const std::string& normaliser) {
  FastWeightState state;
  state.feature_map = feature_maps_from_names("FastWeightState.save", {feature_map})[0];
  state.unit_features = unit_features;
  state.normaliser = fast_weight_normaliser_from_name("FastWeightState.save", normaliser);
  TORCH_CHECK_VALUE(tensors.size() == 3, "fast_weight_state_save: got ", tensors.size(),
                    " tensors; allowed are the three of a FastWeightState");
  size_t index = 0;
  for (auto& [name, tensor] : fields(state)) *tensor = tensors[index++];
  state.save(path);
}

std::tuple<std::vector<Tensor>, std::string, bool, std::string> load_op(const std::string& path) {
  const FastWeightState state = FastWeightState::load(path);
  std::vector<Tensor> tensors;
  for (const auto& [name, tensor] : fields(state)) tensors.push_back(*tensor);
  return {tensors, std::string(enum_name(state.feature_map)), state.unit_features,
          std::string(enum_name(state.normaliser))};
}

TORCH_LIBRARY_FRAGMENT(fmmformer, m) {
  m.def(
      "fast_weight_state_save(str path, Tensor[] tensors, str feature_map, bool unit_features, "
      "str normaliser) -> ()");
  m.def(
      "fast_weight_state_load(str path) -> (Tensor[] tensors, str feature_map, "
      "bool unit_features, str normaliser)",
      &load_op);
}
TORCH_LIBRARY_IMPL(fmmformer, CompositeExplicitAutograd, m) {
  m.impl("fast_weight_state_save", &save_op);
}

}  // namespace
}  // namespace fmmformer
