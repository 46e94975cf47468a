// SPDX-License-Identifier: Apache-2.0
// Every named case in every type, forward and backward, against the double reference.
#include <gtest/gtest.h>

#include "attention/quick_run.h"
#include "bench/verification.h"

namespace fmmformer::bench {
namespace {

class FmmAttentionCase : public testing::TestWithParam<AttentionCase> {};

TEST_P(FmmAttentionCase, AgreesWithTheReferenceInEveryType) {
  for (const c10::ScalarType dtype : GetParam().dtypes) {
    if (quick_run() && dtype != c10::kFloat && dtype != c10::kHalf) continue;
    const CaseReport report = verify_case(GetParam(), dtype);
    for (const Check& check : report.checks) {
      EXPECT_TRUE(check.passed()) << dtype_name(dtype) << " " << check.tensor << ", " << check.rule
                                  << ": error " << check.error << ", allowed " << check.allowed;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, FmmAttentionCase,
                         testing::ValuesIn(cases_with_tag(quick_run() ? CaseTag::kQuick
                                                                      : CaseTag::kVerify)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fmmformer::bench
