// SPDX-License-Identifier: Apache-2.0
// Whether this build's kernels are for the GPU at hand.
#pragma once

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContextLight.h>

#include "attention/fmm/cuda/sweep.h"

namespace fmmformer::cuda {

/// An error where the current device is older than what the kernels are compiled for, in the place
/// of CUDA's "no kernel image"; a warning, once, where they are not optimised.
inline void check_build_for_gpu(const char* function) {
#ifdef FMMFORMER_UNOPTIMIZED_CUDA
  TORCH_WARN_ONCE(
      function,
      ": the CUDA kernels of this build are not optimised (FMMFORMER_CUDA_OPTIMIZE=OFF, "
      "as `make test` builds them where it finds no GPU); `make build` makes good ones");
#endif
  const cudaDeviceProp& gpu = *at::cuda::getCurrentDeviceProperties();
  const int least = least_capability();
  TORCH_CHECK_NOT_IMPLEMENTED(
      10 * gpu.major + gpu.minor >= least, function, ": this GPU has compute capability ",
      gpu.major, ".", gpu.minor, "; the kernels of this build are for ", least / 10, ".",
      least % 10, " and later; build with `cmake --preset all-gpus` for GPUs from 8.0 on");
}

}  // namespace fmmformer::cuda
