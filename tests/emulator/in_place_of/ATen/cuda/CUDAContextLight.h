// SPDX-License-Identifier: Apache-2.0
// In place of torch's: the emulated GPU.
#pragma once

#include "emulator/runtime.h"

namespace at::cuda {

inline const cudaDeviceProp* getCurrentDeviceProperties() {
  return &fmmformer::emulator::emulated_gpu();
}

}  // namespace at::cuda
