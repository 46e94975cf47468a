// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/Context.h>

namespace fmmformer {

/// While it lives, torch's operators give the same bits in every run: some of its CUDA kernels add
/// up with atomics unless a global switch forbids it. That switch by itself would also make every
/// operator fill the memory it allocates: not here.
class DeterministicScope {
 public:
  DeterministicScope() { set(true, /*warn_only=*/false, /*fill=*/false); }
  ~DeterministicScope() { set(before_, warned_only_, filled_); }
  DeterministicScope(const DeterministicScope&) = delete;
  DeterministicScope& operator=(const DeterministicScope&) = delete;

 private:
  static void set(bool deterministic, bool warn_only, bool fill) {
    at::globalContext().setDeterministicAlgorithms(deterministic, warn_only);
    at::globalContext().setDeterministicFillUninitializedMemory(fill);
  }
  const bool before_ = at::globalContext().deterministicAlgorithms();
  const bool warned_only_ = at::globalContext().deterministicAlgorithmsWarnOnly();
  const bool filled_ = at::globalContext().deterministicFillUninitializedMemory();
};

}  // namespace fmmformer
