// SPDX-License-Identifier: Apache-2.0
// The decoding state as a value and as a file.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <array>
#include <filesystem>
#include <map>
#include <utility>

#include "attention/fmm/fmm_schema.h"
#include "fmmformer/attention/fmm_decode.h"
#include "fmmformer/core/safetensors.h"

namespace fmmformer {
namespace {

using at::Tensor;

constexpr const char* kFormat = "fmmformer.FmmState";
constexpr const char* kVersion = "2";  // 1 did not say which feature maps its sums are of

constexpr std::pair<at::ScalarType, const char*> kTypeNames[] = {
    {at::kDouble, "F64"},    {at::kFloat, "F32"}, {at::kHalf, "F16"},
    {at::kBFloat16, "BF16"}, {at::kLong, "I64"},  {at::kBool, "BOOL"}};

std::string type_name(at::ScalarType type) {
  for (const auto& [known, name] : kTypeNames) {
    if (known == type) return name;
  }
  TORCH_CHECK_VALUE(false, "FmmState.save: cannot store tensors of type ", type);
}

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

Tensor tensor_from_file(const std::string& path, const SafeTensorsFile& file, const char* name) {
  const SafeTensor* stored = file.find(name);
  TORCH_CHECK_VALUE(stored != nullptr, "FmmState.load: ", path, " holds no tensor '", name,
                    "'; it is no saved FmmState, save the state anew");
  for (const auto& [type, type_name] : kTypeNames) {
    if (stored->dtype != type_name) continue;
    Tensor tensor = at::empty(stored->shape, type);
    TORCH_INTERNAL_ASSERT(tensor.nbytes() == stored->data.size());
    std::copy(stored->data.begin(), stored->data.end(), static_cast<std::byte*>(tensor.data_ptr()));
    return tensor;
  }
  TORCH_CHECK_VALUE(false, "FmmState.load: ", path, ": tensor '", name, "' has type ",
                    stored->dtype, ", which no FmmState has; save the state anew");
}

std::string map_key(size_t number) { return "feature_map." + std::to_string(number); }

std::vector<std::string> map_names(const FmmState& state) {
  std::vector<std::string> names;
  for (const FeatureMap map : state.feature_maps) names.emplace_back(enum_name(map));
  return names;
}

// What the file says of itself: format, version, and what its sums are sums of.
void read_metadata(const std::string& path, const SafeTensorsFile& file, FmmState& state) {
  const auto entry = [&](const std::string& name) -> std::string {
    const auto found = file.metadata.find(name);
    return found == file.metadata.end() ? "" : found->second;
  };
  TORCH_CHECK_VALUE(
      entry("format") == kFormat, "FmmState.load: ", path,
      " is a safetensors file, but no saved FmmState; give a file that FmmState.save wrote");
  TORCH_CHECK_VALUE(entry("version") == kVersion, "FmmState.load: ", path, " has version '",
                    entry("version"), "', this library reads ", kVersion,
                    "; run the prompt through fmm_attention_prefill again and save that state");
  std::vector<std::string> names;
  while (file.metadata.count(map_key(names.size())) > 0)
    names.push_back(entry(map_key(names.size())));
  state.feature_maps = feature_maps_from_names(("FmmState.load: " + path).c_str(), names);
  const std::string unit = entry("unit_features");
  TORCH_CHECK_VALUE(unit == "true" || unit == "false", "FmmState.load: ", path,
                    " does not say whether its features are unit_features; it is damaged, save the "
                    "state anew");
  state.unit_features = unit == "true";
}

// The tensors of a state must fit each other, or a step would read beyond them.
void check_loaded(const std::string& path, const FmmState& state) {
  const auto fits = [&](bool condition) {
    TORCH_CHECK_VALUE(
        condition, "FmmState.load: the tensors in ", path,
        " do not fit each other; the file is damaged or was made by hand; save the state anew");
  };
  fits(state.keys.dim() == 4 && state.values.dim() == 4 && state.live.dim() == 2 &&
       state.far_sums.dim() == 5 && state.far_key_sums.dim() == 4 && state.position.numel() == 1);
  fits(state.values.sizes().slice(0, 3) == state.keys.sizes().slice(0, 3) &&
       state.live.sizes() == state.keys.sizes().slice(0, 2));
  fits(state.far_key_sums.sizes() == state.far_sums.sizes().slice(0, 4) &&
       state.far_sums.size(0) == state.keys.size(0) &&
       state.far_sums.size(1) == state.keys.size(2) &&
       state.far_sums.size(3) == state.keys.size(3) &&
       state.far_sums.size(4) == state.values.size(3) &&
       state.far_sums.size(2) == static_cast<int64_t>(state.feature_maps.size()));
  fits(state.live.scalar_type() == at::kBool && state.position.scalar_type() == at::kLong &&
       state.values.scalar_type() == state.keys.scalar_type() &&
       at::isFloatingType(state.keys.scalar_type()));
  const at::ScalarType sums = state.keys.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  fits(state.far_sums.scalar_type() == sums && state.far_key_sums.scalar_type() == sums);
  fits(state.position.item<int64_t>() >= 0);
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
  std::vector<Tensor> on_host;  // keeps the bytes alive until they are written
  std::vector<std::pair<std::string, SafeTensorView>> views;
  for (const auto& [name, tensor] : fields(*this)) {
    const Tensor& bytes = on_host.emplace_back(tensor->to(at::kCPU).contiguous());
    views.emplace_back(name, SafeTensorView{type_name(bytes.scalar_type()),
                                            bytes.sizes().vec(),
                                            {static_cast<const std::byte*>(bytes.const_data_ptr()),
                                             bytes.nbytes()}});
  }
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  TORCH_CHECK_VALUE(folder.empty() || std::filesystem::is_directory(folder), "FmmState.save: '",
                    path, "': there is no folder '", folder.string(), "'; create it first");
  std::map<std::string, std::string> metadata = {
      {"format", kFormat},
      {"version", kVersion},
      {"unit_features", unit_features ? "true" : "false"}};
  const std::vector<std::string> names = map_names(*this);
  for (size_t number = 0; number < names.size(); ++number)
    metadata[map_key(number)] = names[number];
  try {
    write_safetensors(path, views, metadata);
  } catch (const std::runtime_error& error) {
    TORCH_CHECK(false, "FmmState.save: ", error.what());
  }
}

FmmState FmmState::load(const std::string& path) {
  FmmState state;
  try {
    const SafeTensorsFile file = read_safetensors(path);
    TORCH_CHECK_VALUE(file.checksummed, "FmmState.load: ", path,
                      " carries no checksum: it is damaged or was not written by "
                      "FmmState.save; save the state anew");
    read_metadata(path, file, state);
    for (auto& [name, tensor] : fields(state)) *tensor = tensor_from_file(path, file, name);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, "FmmState.load: ", error.what());
  }
  check_loaded(path, state);
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
