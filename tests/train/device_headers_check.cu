// SPDX-License-Identifier: Apache-2.0
// Compiles the headers that CPU and GPU share with nvcc; nothing here runs.
#include "train/optimizer_math.h"

namespace fmmformer::train {

__global__ void use_shared_headers(UpdateFactors<double> factors, float norm, float* numbers) {
  const float scale = clip_factor(norm, 1.0F);
  update_element<true>(factors_as<float>(factors), scale * numbers[0], numbers[1], numbers[2],
                       numbers[3]);
}

}  // namespace fmmformer::train
