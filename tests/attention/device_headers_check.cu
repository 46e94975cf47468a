// SPDX-License-Identifier: Apache-2.0
// Compiles the headers that CPU and GPU share with nvcc; nothing here runs.
#include "attention/feature_map.h"
#include "attention/philox.h"

namespace fmmformer {

__global__ void use_shared_headers(FeatureMap map, float* numbers, uint32_t* words) {
  const unsigned i = threadIdx.x;
  const float e = expf(-fabsf(numbers[i]));
  numbers[i] = scalar::feature_value(ScalarOps<float>(), map, numbers[i], e) +
               scalar::feature_slope(ScalarOps<float>(), map, numbers[i], e);
  words[i] = philox_block({{i, 0, 0, 0}}, words[i], 0).word[0];
}

}  // namespace fmmformer
