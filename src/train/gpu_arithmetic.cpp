// SPDX-License-Identifier: Apache-2.0
#include "train/gpu_arithmetic.h"

#include <ATen/Context.h>

#include <cstdlib>

namespace fmmformer::train {

void set_gpu_arithmetic(bool tf32) {
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*replace=*/0);
  at::globalContext().setAllowTF32CuBLAS(tf32);
  at::globalContext().setAllowBF16ReductionCuBLAS(false);
}

}  // namespace fmmformer::train
