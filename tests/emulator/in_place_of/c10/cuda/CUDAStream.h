// SPDX-License-Identifier: Apache-2.0
// In place of torch's: what is launched is done at once.
#pragma once

#include <cuda_runtime_api.h>

namespace c10::cuda {

struct CUDAStream {
  operator cudaStream_t() const { return nullptr; }
};
inline CUDAStream getCurrentCUDAStream() { return {}; }

}  // namespace c10::cuda
