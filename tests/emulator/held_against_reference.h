// SPDX-License-Identifier: Apache-2.0
// A case of either operator by the GPU's kernels, on the CPU, held against the double reference.
#pragma once

#include <gmock/gmock.h>

#include "bench/verification.h"
#include "emulator/runtime.h"

namespace fmmformer::emulator {

/// Fails the test where a number is wrong, or the kernels have a race. Returns the names of the
/// kernels that ran, one after the other. `attention`: a function in the operator's place, or none.
template <typename Case, typename... Function>
std::string hold_against_reference(const Case& one, c10::ScalarType dtype,
                                   const Function&... attention) {
  take_launches(), take_races();
  watch_races(/*blocks=*/16);
  const bench::CaseReport report = bench::verify_case(one, dtype, /*seed=*/1, attention...);
  for (const bench::Check& check : report.checks) {
    EXPECT_TRUE(check.passed()) << bench::dtype_name(dtype) << " " << check.tensor << ", "
                                << check.rule << ": error " << check.error << ", allowed "
                                << check.allowed;
  }
  EXPECT_THAT(take_races(), testing::IsEmpty());
  std::string kernels;
  for (const std::string& kernel : take_launches()) kernels += kernel + "\n";
  return kernels;
}

}  // namespace fmmformer::emulator
