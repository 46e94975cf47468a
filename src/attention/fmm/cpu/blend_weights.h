// SPDX-License-Identifier: Apache-2.0
// The blend weights of a call, and their gradients, as plain arrays. A short call takes tens of
// microseconds, so a dozen of torch's operations on a dozen numbers would be a part of it.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>

#include <optional>
#include <vector>

#include "attention/fmm/cpu/tasks.h"
#include "attention/problem.h"

namespace fmmformer::cpu {

/// A weight as [maps, heads, channels] with every number written out; none: ones.
template <typename Real>
std::vector<Real> spread_weight(const std::optional<at::Tensor>& weight, int64_t maps,
                                int64_t heads, int64_t channels) {
  std::vector<Real> spread(static_cast<size_t>(maps * heads * channels), Real(1));
  if (!weight) return spread;
  constexpr at::ScalarType kReal = c10::CppTypeToScalarType<Real>::value;
  const at::Tensor typed = weight->scalar_type() == kReal ? *weight : weight->to(kReal);
  const WeightStrides strides = weight_strides(typed);
  const Real* from = typed.const_data_ptr<Real>();
  Real* to = spread.data();
  for (int64_t l = 0; l < maps; ++l) {
    for (int64_t h = 0; h < heads; ++h) {
      const Real* row = from + l * strides.map + h * strides.head;
      for (int64_t e = 0; e < channels; ++e) *to++ = row[e * strides.channel];
    }
  }
  return spread;
}

/// What the tasks add to the gradients of the weights: [tasks, maps + 1, width], the near field's
/// row last; of a row the first `channels` count.
struct WeightSums {
  WeightSums(int64_t tasks, int64_t maps, int64_t channels, int64_t width)
      : rows(maps + 1),
        channels(channels),
        width(width),
        sums(static_cast<size_t>(tasks * rows * width)) {}

  double* of(int64_t task) { return sums.data() + task * rows * width; }
  const double* row(int64_t task, int64_t map) const {
    return sums.data() + (task * rows + map) * width;
  }

  int64_t rows, channels, width;
  std::vector<double> sums;
};

/// The gradient of a weight of `maps` maps, from row `first_map` of the sums on. In the order of
/// the tasks: torch's sums may be cut by the number of threads.
inline at::Tensor weight_gradient(const WeightSums& by_task, const Cut& cut, int64_t first_map,
                                  int64_t maps, const at::Tensor& weight) {
  at::Tensor gradient = at::empty(weight.sizes(), weight.options());
  const WeightStrides strides = weight_strides(gradient);
  std::vector<double> sums(static_cast<size_t>(gradient.numel()));
  for (int64_t task = 0; task < cut.tasks(); ++task) {
    const int64_t head = cut.segment(task).head;
    for (int64_t l = 0; l < maps; ++l) {
      const double* row = by_task.row(task, first_map + l);
      double* to = sums.data() + l * strides.map + head * strides.head;
      for (int64_t e = 0; e < by_task.channels; ++e) to[e * strides.channel] += row[e];
    }
  }
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, weight.scalar_type(), "weight_gradient",
                                  [&] {
                                    scalar_t* to = gradient.data_ptr<scalar_t>();
                                    for (const double sum : sums)
                                      *to++ = static_cast<scalar_t>(sum);
                                  });
  return gradient;
}

}  // namespace fmmformer::cpu
