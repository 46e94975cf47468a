// SPDX-License-Identifier: Apache-2.0
// Many exponentials at once: plain C++ and Highway, no torch.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

namespace fmmformer::cpu {

/// The largest of them; values that are no numbers may or may not show.
float highest(std::span<const float> values);

/// sum of exp(values[i] - reference) over all values >= `least`. reference: not less than any.
double exp_sum(std::span<const float> values, float reference,
               float least = -std::numeric_limits<float>::infinity());

/// log of the sum of exp(values).
double log_sum_exp(std::span<const float> values);

/// out[i] = exp(values[i] - reference), and their sum.
double exp_all(std::span<const float> values, float reference, float* out);
double exp_all(std::span<const double> values, double reference, double* out);

}  // namespace fmmformer::cpu
