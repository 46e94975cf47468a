// SPDX-License-Identifier: Apache-2.0
// Dropout without a generator: whether an element is dropped is a function of the pass's seed, the
// site in the model and the element's index in its (row-major) tensor. A resumed run therefore
// draws what the uninterrupted one would have, and CPU and GPU draw the same.
//
// Element e takes word e % 4 of the Philox4x32-7 block of counter (e / 4 low, e / 4 high, site, 1)
// under the key `dropout_seed`, and is dropped when that word is below p * 2^32. (The near field's
// own dropout, attention/philox.h, has 0 in the last place.) The kept are divided by 1 - p.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "fmmformer/nn/pass.h"

namespace fmmformer {

/// One place of a model where dropout happens. Two places must not share a site.
struct DropoutSite {
  double probability = 0;
  int64_t site = 0;
};

/// All of these are plain (nothing is dropped) when pass.training is false or the probability is 0.
/// They throw c10::ValueError when training needs a seed and the pass has none.

/// What the pass really drops there.
DropoutSite active_site(const DropoutSite& site, const Pass& pass);

/// x with elements dropped.
at::Tensor dropout(const at::Tensor& x, const DropoutSite& site, const Pass& pass);

/// residual + dropout(x + bias), in one sweep over memory. bias [last dimension of x], or
/// undefined.
at::Tensor residual_dropout(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& bias,
                            const DropoutSite& site, const Pass& pass);

/// dropout(relu(x + bias)), in one sweep and in place: x must be a temporary of the caller, and no
/// view (torch would copy it back and forth).
at::Tensor relu_dropout(at::Tensor x, const at::Tensor& bias, const DropoutSite& site,
                        const Pass& pass);

/// dropout(gelu(x + bias)), gelu by the error function; on a GPU in one sweep.
at::Tensor gelu_dropout(const at::Tensor& x, const at::Tensor& bias, const DropoutSite& site,
                        const Pass& pass);

/// What x is multiplied by, in fp32, on the seed's device: from plain tensor operations that run
/// anywhere. Slow, and what the kernels are tested against.
at::Tensor dropout_factors(at::IntArrayRef sizes, const DropoutSite& site, const at::Tensor& seed);

}  // namespace fmmformer
