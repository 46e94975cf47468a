// SPDX-License-Identifier: Apache-2.0
// The part of CUDA's runtime that launches ask for: kernels run here at once, on the CPU, from the
// PTX that nvcc left in the program. Linked in the runtime's place.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

namespace fmmformer::emulator {

/// The GPU that the choice of kernels sees, and launches hold to: at first an H200.
cudaDeviceProp& emulated_gpu();

/// From now on, look for races (Races) in so many thread blocks of every launch, from the first on:
/// it takes as long as the rest. 0: in none.
void watch_races(unsigned blocks);
/// What has been found since the last time, kernel by kernel.
std::vector<std::string> take_races();
/// Names of kernels that ran since the last time, as the compiler has them, in their order.
std::vector<std::string> take_launches();

}  // namespace fmmformer::emulator
