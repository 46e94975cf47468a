// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fmmformer {

/// The rows of a matrix that are members of something, moved together in their order: as many rows
/// as there is capacity for, whatever the number of members, so that neither the host need know it
/// nor a captured graph change with it. Both ways and both gradients are reads by index: nothing is
/// added up, so the same bits in every run.
class CompactedRows {
 public:
  /// member: bool [T]. Does not wait for the device.
  CompactedRows(const at::Tensor& member, int64_t capacity);

  /// x [T, ...] -> [capacity, ...]. Rows beyond the members repeat row 0 of x; what comes back as
  /// their gradient is left out.
  at::Tensor select(const at::Tensor& x) const;

  /// values [capacity] -> [T]: each member's value, 0 for all others. Members that found no room
  /// get NaN, so that a capacity which is too small cannot be missed.
  at::Tensor place(const at::Tensor& values) const;

 private:
  at::Tensor rows_;    // int64 [capacity]  whence a row came
  at::Tensor used_;    // bool [capacity]   whether it is a member's
  at::Tensor slots_;   // int64 [T]         where a member went; anywhere for the others
  at::Tensor member_;  // bool [T]
  at::Tensor misfit_;  // bool [T]          a member beyond the capacity
};

}  // namespace fmmformer
