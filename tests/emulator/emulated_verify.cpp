// SPDX-License-Identifier: Apache-2.0
// What `fmmformer verify --device cuda` holds against the double reference, by all kernels, on the
// CPU.
#include "emulator/held_against_reference.h"

namespace fmmformer::emulator {
namespace {

using bench::AttentionCase;
using bench::CaseTag;
using bench::FastWeightCase;

template <typename Case>
void hold_all_types(const Case& one, const std::vector<c10::ScalarType>& dtypes) {
  for (const c10::ScalarType dtype : dtypes) {
    if (dtype != c10::kDouble) EXPECT_NE(hold_against_reference(one, dtype), "");
  }
}

std::vector<AttentionCase> verified_cases() {
  std::vector<AttentionCase> cases = bench::cases_with_tag(CaseTag::kVerify);
  const std::vector<AttentionCase> more = bench::cases_with_tag(CaseTag::kVerifyOnGpu);
  cases.insert(cases.end(), more.begin(), more.end());
  return cases;
}

class EmulatedCase : public testing::TestWithParam<AttentionCase> {};

TEST_P(EmulatedCase, AgreesWithTheReferenceAndHasNoRace) {
  hold_all_types(GetParam(), GetParam().dtypes);
}
INSTANTIATE_TEST_SUITE_P(, EmulatedCase, testing::ValuesIn(verified_cases()),
                         [](const auto& info) { return info.param.name; });

class EmulatedFastWeights : public testing::TestWithParam<FastWeightCase> {};

TEST_P(EmulatedFastWeights, AgreeWithTheReferenceAndHaveNoRace) {
  hold_all_types(GetParam(), GetParam().attention.dtypes);
}
INSTANTIATE_TEST_SUITE_P(, EmulatedFastWeights,
                         testing::ValuesIn(bench::fast_weight_cases_with_tag(CaseTag::kVerify)),
                         [](const auto& info) { return info.param.name(); });

}  // namespace
}  // namespace fmmformer::emulator
