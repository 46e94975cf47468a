// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace fmmformer::cli {

std::string_view project_version();

/// The git commit that was built, with "+" behind it when the tree had changes; "unknown" outside
/// of git.
std::string_view git_commit();

/// Whether the CUDA kernels are in this build.
bool has_cuda_kernels();

/// "fmmformer 0.1.0 (commit 1234567, torch 2.11.0, AVX-512, CUDA kernels for sm_90)", or "no CUDA
/// kernels" in a build without them.
std::string version_text();

}  // namespace fmmformer::cli
