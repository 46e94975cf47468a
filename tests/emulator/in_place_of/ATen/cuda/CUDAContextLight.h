// SPDX-License-Identifier: Apache-2.0
// In place of torch's: as an H200 describes itself, as far as the choice of kernels asks.
#pragma once

#include <cuda_runtime_api.h>

namespace at::cuda {

inline const cudaDeviceProp* getCurrentDeviceProperties() {
  static const cudaDeviceProp kHopper = [] {
    cudaDeviceProp made{};
    made.major = 9, made.minor = 0;
    made.sharedMemPerBlockOptin = 232448, made.reservedSharedMemPerBlock = 1024;
    return made;
  }();
  return &kHopper;
}

}  // namespace at::cuda
