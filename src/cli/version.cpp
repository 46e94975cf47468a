// SPDX-License-Identifier: Apache-2.0
#include "cli/version.h"

#include <torch/version.h>

#include "fmmformer/attention/cpu_info.h"
// Made by write_version.cmake; included here alone, so that a new commit recompiles one file.
#include "fmmformer_version.h"

namespace fmmformer::cli {

std::string_view project_version() { return FMMFORMER_VERSION; }

std::string_view git_commit() { return FMMFORMER_COMMIT; }

bool has_cuda_kernels() { return !std::string_view(FMMFORMER_CUDA_ARCHITECTURES).empty(); }

std::string version_text() {
  std::string text = "fmmformer ";
  text.append(project_version()).append(" (commit ").append(git_commit());
  text.append(", torch ").append(TORCH_VERSION).append(", ").append(active_instruction_set());
  // A list of CMake's: "80;90".
  const std::string_view architectures = FMMFORMER_CUDA_ARCHITECTURES;
  if (!has_cuda_kernels()) return text.append(", no CUDA kernels)");
  return text.append(", CUDA kernels for sm_").append(architectures).append(")");
}

}  // namespace fmmformer::cli
