// SPDX-License-Identifier: Apache-2.0
#include "attention/state_file.h"

#include <ATen/ATen.h>

#include <filesystem>

namespace fmmformer {
namespace {

using at::Tensor;

constexpr std::pair<at::ScalarType, const char*> kTypeNames[] = {
    {at::kDouble, "F64"},    {at::kFloat, "F32"}, {at::kHalf, "F16"},
    {at::kBFloat16, "BF16"}, {at::kLong, "I64"},  {at::kBool, "BOOL"}};

std::string type_name(const StateKind& kind, at::ScalarType type) {
  for (const auto& [known, name] : kTypeNames) {
    if (known == type) return name;
  }
  TORCH_CHECK_VALUE(false, kind.name, ".save: cannot store tensors of type ", type);
}

std::string format_of(const StateKind& kind) { return std::string("fmmformer.") + kind.name; }

}  // namespace

void write_state_file(const StateKind& kind, const std::string& path,
                      const std::vector<std::pair<const char*, Tensor>>& tensors,
                      std::map<std::string, std::string> metadata) {
  std::vector<Tensor> on_host;  // keeps the bytes alive until they are written
  std::vector<std::pair<std::string, SafeTensorView>> views;
  for (const auto& [name, tensor] : tensors) {
    const Tensor& bytes = on_host.emplace_back(tensor.to(at::kCPU).contiguous());
    views.emplace_back(name, SafeTensorView{type_name(kind, bytes.scalar_type()),
                                            bytes.sizes().vec(),
                                            {static_cast<const std::byte*>(bytes.const_data_ptr()),
                                             bytes.nbytes()}});
  }
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  TORCH_CHECK_VALUE(folder.empty() || std::filesystem::is_directory(folder), kind.name, ".save: '",
                    path, "': there is no folder '", folder.string(), "'; create it first");
  metadata["format"] = format_of(kind);
  metadata["version"] = kind.version;
  try {
    write_safetensors(path, views, metadata);
  } catch (const std::runtime_error& error) {
    TORCH_CHECK(false, kind.name, ".save: ", error.what());
  }
}

StateFile::StateFile(const StateKind& kind, const std::string& path)
    : kind_(kind), where_(std::string(kind.name) + ".load: " + path) {
  try {
    file_ = read_safetensors(path);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, kind.name, ".load: ", error.what());
  }
  TORCH_CHECK_VALUE(file_.checksummed, where_,
                    " carries no checksum: it is damaged or was not written by ", kind.name,
                    ".save; save the state anew");
  TORCH_CHECK_VALUE(entry("format") == format_of(kind), where_,
                    " is a safetensors file, but no saved ", kind.name, "; give a file that ",
                    kind.name, ".save wrote");
  TORCH_CHECK_VALUE(entry("version") == kind.version, where_, " has version '", entry("version"),
                    "', this library reads ", kind.version, "; run the prompt through ",
                    kind.prefill, " again and save that state");
}

std::string StateFile::entry(const std::string& name) const {
  const auto found = file_.metadata.find(name);
  return found == file_.metadata.end() ? "" : found->second;
}

bool StateFile::flag(const std::string& name) const {
  const std::string text = entry(name);
  TORCH_CHECK_VALUE(text == "true" || text == "false", where_,
                    " does not say whether its features are ", name,
                    "; it is damaged, save the state anew");
  return text == "true";
}

Tensor StateFile::tensor(const char* name) const {
  const SafeTensor* stored = file_.find(name);
  TORCH_CHECK_VALUE(stored != nullptr, where_, " holds no tensor '", name, "'; it is no saved ",
                    kind_.name, ", save the state anew");
  for (const auto& [type, type_name] : kTypeNames) {
    if (stored->dtype != type_name) continue;
    Tensor tensor = at::empty(stored->shape, type);
    TORCH_INTERNAL_ASSERT(tensor.nbytes() == stored->data.size());
    std::copy(stored->data.begin(), stored->data.end(), static_cast<std::byte*>(tensor.data_ptr()));
    return tensor;
  }
  TORCH_CHECK_VALUE(false, where_, ": tensor '", name, "' has type ", stored->dtype, ", which no ",
                    kind_.name, " has; save the state anew");
}

void StateFile::check_fit(bool fits) const {
  TORCH_CHECK_VALUE(fits, where_,
                    ": its tensors do not fit each other; the file is damaged or was made by hand; "
                    "save the state "
                    "anew");
}

}  // namespace fmmformer
