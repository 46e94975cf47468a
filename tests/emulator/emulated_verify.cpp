// SPDX-License-Identifier: Apache-2.0
// What `fmmformer verify --device cuda` holds against the double reference, by all kernels, on the
// CPU.
#include <tuple>

#include "emulator/held_against_reference.h"
#include "emulator/held_decoding.h"

namespace fmmformer::emulator {
namespace {

using bench::AttentionCase;
using bench::CaseTag;
using bench::FastWeightCase;

template <typename Case>
void hold_all_types(const Case& one, const std::vector<c10::ScalarType>& dtypes) {
  for (const c10::ScalarType dtype : dtypes) {
    if (dtype == c10::kDouble) continue;
    EXPECT_NE(hold_against_reference(one, dtype), "");
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

/// A GPU that is not for Hopper's own kernels, and whose blocks may have less shared memory.
class EmulatedOtherGpu : public testing::TestWithParam<std::tuple<int, AttentionCase>> {
 protected:
  void SetUp() override {
    emulated_gpu().minor = 1;
    emulated_gpu().sharedMemPerBlockOptin = static_cast<size_t>(std::get<0>(GetParam())) * 1024;
  }
  void TearDown() override { emulated_gpu() = hopper_; }

 private:
  const cudaDeviceProp hopper_ = emulated_gpu();
};

TEST_P(EmulatedOtherGpu, TakesWideHeadsInAsManyRowsAsItHasRoomFor) {
  hold_all_types(std::get<1>(GetParam()), {c10::kFloat, c10::kBFloat16});
}
/// Those whose rows are wide, and long enough for several segments.
std::vector<AttentionCase> wide_cases() {
  std::vector<AttentionCase> cases;
  for (const char* name :
       {"head_dim_48_causal", "heads_of_48_channels_with_dropout",
        "many_segments_of_48_channels_causal", "many_segments_of_96_channels_causal",
        "heads_of_96_channels_with_dropout", "heads_of_96_channels_and_one_map",
        "dropout_and_mask_of_128_channels", "head_dim_64_two_sided", "head_dim_80_two_sided",
        "head_dim_128_causal", "three_maps_of_128_channels", "segments_of_64_channels",
        "segments_of_128_channels", "many_segments_of_64_channels_two_sided",
        "many_segments_of_128_channels_two_sided"})
    cases.push_back(bench::case_named(name));
  return cases;
}
// KiB of a GPU of compute capability 8.0, of 8.6 and 8.9, and of those after 9.0.
INSTANTIATE_TEST_SUITE_P(, EmulatedOtherGpu,
                         testing::Combine(testing::Values(163, 99, 227),
                                          testing::ValuesIn(wide_cases())),
                         [](const auto& info) {
                           return std::get<1>(info.param).name + "_in_" +
                                  std::to_string(std::get<0>(info.param)) + "_KiB";
                         });

TEST(EmulatedDecoding, GoesOnFromAStateThatKernelsForMoreChannelsLeft) {
  using enum FeatureMap;
  hold_decoding_against_reference(80, c10::kFloat, 1e-5);
  hold_decoding_against_reference(120, c10::kFloat, 1e-5, {kElu, kEluFlip, kTanh1});
  hold_decoding_against_reference(56, c10::kFloat, 1e-5, {kElu, kEluFlip, kTanh1});
  hold_decoding_against_reference(56, c10::kBFloat16, 5e-2, {kElu, kEluFlip, kTanh1});
}

class EmulatedFastWeights : public testing::TestWithParam<FastWeightCase> {};

TEST_P(EmulatedFastWeights, AgreeWithTheReferenceAndHaveNoRace) {
  hold_all_types(GetParam(), GetParam().attention.dtypes);
}
INSTANTIATE_TEST_SUITE_P(, EmulatedFastWeights,
                         testing::ValuesIn(bench::fast_weight_cases_with_tag(CaseTag::kVerify)),
                         [](const auto& info) { return info.param.name(); });

}  // namespace
}  // namespace fmmformer::emulator
