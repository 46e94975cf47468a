// SPDX-License-Identifier: Apache-2.0
// The GPUs that a file of kernels is compiled for.
#pragma once

#include <initializer_list>

namespace fmmformer::cuda {

/// A hundred times their compute capabilities; none where the compiler does not tell.
#ifdef __CUDA_ARCH_LIST__
inline constexpr std::initializer_list<int> kArchitectures = {__CUDA_ARCH_LIST__};
#else
inline constexpr std::initializer_list<int> kArchitectures = {};
#endif

}  // namespace fmmformer::cuda
