// SPDX-License-Identifier: Apache-2.0
// In place of torch's, which asks the driver what happened.
#pragma once

#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#define C10_CUDA_CHECK(launched)                                                                 \
  do {                                                                                           \
    const cudaError_t error = launched;                                                          \
    TORCH_CHECK(error == cudaSuccess, "error ", static_cast<int>(error),                         \
                " of a kernel: it has said why; or it is not in tests/emulator/CMakeLists.txt"); \
  } while (false)
