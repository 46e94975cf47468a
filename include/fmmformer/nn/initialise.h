// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <cstdint>

#include "fmmformer/nn/config.h"

namespace fmmformer {

/// Fills the parameters of every Linear, LayerNorm and Embedding in `model`; blending weights keep
/// their constants. A parameter's values follow from the seed and its own name alone: what else the
/// model has does not move them. Works for parameters on any device.
void initialise(torch::nn::Module& model, Initialisation rule, double std, uint64_t seed);

}  // namespace fmmformer
