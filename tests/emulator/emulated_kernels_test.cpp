// SPDX-License-Identifier: Apache-2.0
// The GPU's kernels on the CPU: small calls that reach each of those that are for Hopper alone,
// fast weights and decoding, held against the double reference, with an eye on races. All of
// `verify`'s cases, with all kernels: emulated_verify.cpp.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include "attention/fast_weight/fast_weight_schema.h"
#include "emulator/held_against_reference.h"
#include "emulator/held_decoding.h"

namespace fmmformer::emulator {
namespace {

using bench::AttentionCase;
using bench::MaskPattern;
using bench::WeightShape;
using enum FeatureMap;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// Names of functions, as the compiler has them: of namespaces within each other.
auto ran(const std::string& mangled) { return HasSubstr("fmmformer4cuda" + mangled); }

/// As many heads of 32 channels as have kernels of their own.
AttentionCase narrow(int64_t batch, int64_t length) {
  return {.name = "narrow",
          .batch = batch,
          .length = length,
          .heads = 8,
          .head_dim = 32,
          .bandwidth = 30,
          .feature_maps = {kElu, kEluFlip, kTanh1},
          .weights = WeightShape::kPerChannel};
}

TEST(EmulatedKernels, OfNarrowHeadsMakeBothSidesGradientsInOneWalkWithDropout) {
  AttentionCase one = narrow(/*batch=*/36, /*length=*/100);
  one.near_dropout = 0.1;
  const std::string kernels = hold_against_reference(one, c10::kBFloat16);
  EXPECT_THAT(kernels, ran("6narrow14forward_kernel"));
  EXPECT_THAT(kernels, ran("6narrow10both_sides15gradient_kernel"));
}

TEST(EmulatedKernels, OfNarrowHeadsTakeScoresFarAboveTheOwn) {
  AttentionCase one = narrow(/*batch=*/32, /*length=*/130);
  one.feature_maps = {kElu}, one.near_scale = 20;
  EXPECT_THAT(hold_against_reference(one, c10::kBFloat16), ran("6narrow14forward_kernel"));
}

TEST(EmulatedKernels, OfNarrowHeadsTakeMasksOverNan) {
  AttentionCase one = narrow(/*batch=*/32, /*length=*/70);
  one.mask = MaskPattern::kRandom, one.unit_features = true;
  one.feature_maps = {kElu, kEluFlip};
  EXPECT_THAT(hold_against_reference(one, c10::kBFloat16),
              ran("6narrow10both_sides15gradient_kernel"));
}

TEST(EmulatedKernels, OfNarrowHeadsHaveASweepForEachSideWhereTheFarScaleIsNegative) {
  AttentionCase one = narrow(/*batch=*/32, /*length=*/70);
  one.far_scale = -0.7, one.near_dropout = 0.2;
  const std::string kernels = hold_against_reference(one, c10::kBFloat16);
  EXPECT_THAT(kernels, ran("6narrow12query_kernel"));
  EXPECT_THAT(kernels, ran("6narrow10key_kernel"));
}

TEST(EmulatedKernels, OfNarrowHeadsInFp32TakeMasksAndDropout) {
  AttentionCase one = narrow(/*batch=*/16, /*length=*/70);
  one.mask = MaskPattern::kInterior, one.near_dropout = 0.1;
  EXPECT_THAT(hold_against_reference(one, c10::kFloat), ran("11narrow_fp3210key_kernel"));
}

TEST(EmulatedKernels, OfShortSequencesHaveAllOfThemAtOnce) {
  const AttentionCase one = {.name = "whole", .length = 100, .head_dim = 16, .bandwidth = 20};
  EXPECT_THAT(hold_against_reference(one, c10::kBFloat16), ran("5whole"));
}

TEST(EmulatedKernels, OfHeadsOf64ChannelsMakeBothSidesGradientsInOneSweep) {
  const AttentionCase one = {.name = "both_sides",
                             .batch = 12,
                             .length = 130,
                             .heads = 11,
                             .head_dim = 64,
                             .bandwidth = 20};
  EXPECT_THAT(hold_against_reference(one, c10::kBFloat16), ran("6chunks10both_sides"));
}

TEST(EmulatedKernels, OfHeadsOf64ChannelsTellBackwardWhatDropoutKeeps) {
  AttentionCase one = {.name = "dropped", .batch = 12, .length = 150, .heads = 11, .head_dim = 64};
  one.bandwidth = 20, one.near_dropout = 0.2;
  const std::string kernels = hold_against_reference(one, c10::kBFloat16);
  EXPECT_THAT(kernels, ran("6chunks10both_sides7forward"));
  EXPECT_THAT(kernels, ran("6chunks10both_sides15gradient_kernel"));
}

TEST(EmulatedKernels, OfHeadsOf64ChannelsWalkChunksByWarpgroups) {
  AttentionCase one = {.name = "chunks", .length = 150, .head_dim = 64, .bandwidth = 20};
  one.near_dropout = 0.1, one.mask = MaskPattern::kLeft;
  const std::string kernels = hold_against_reference(one, c10::kBFloat16);
  EXPECT_THAT(kernels, ran("6chunks9warpgroup"));
  EXPECT_THAT(kernels, Not(ran("6chunks10both_sides")));
}

TEST(EmulatedKernels, OfHeadsOf64ChannelsInFp32ArePreparedByFeeders) {
  const AttentionCase one = {.name = "fed", .length = 150, .head_dim = 64, .bandwidth = 20};
  EXPECT_THAT(hold_against_reference(one, c10::kFloat), ran("11chunks_fp32"));
}

TEST(EmulatedKernels, OfFp32ServeFp16ThatLiesAnyway) {
  AttentionCase one = {.name = "fp16", .length = 150, .head_dim = 64, .bandwidth = 20};
  one.layout = bench::Layout::kBhnd, one.shared_key_heads = true;
  EXPECT_THAT(hold_against_reference(one, c10::kHalf), ran("11chunks_fp32"));
}

TEST(EmulatedKernels, OfHeadsOf128ChannelsHaveWarpgroupsWithRoles) {
  AttentionCase one = {.name = "warpgroups", .length = 200, .head_dim = 128, .bandwidth = 20};
  one.mask = MaskPattern::kRight;
  EXPECT_THAT(hold_against_reference(one, c10::kBFloat16), ran("10warpgroups"));
  one.near_dropout = 0.2;
  EXPECT_THAT(hold_against_reference(one, c10::kBFloat16), ran("10warpgroups"));
}

TEST(EmulatedKernels, OfHeadsOf64ChannelsHaveRoomForFewer) {
  AttentionCase one = {.name = "fewer", .batch = 12, .length = 130, .heads = 11, .head_dim = 48};
  one.bandwidth = 20, one.mask = MaskPattern::kRandom;
  EXPECT_THAT(hold_against_reference(one, c10::kBFloat16), ran("6chunks10both_sides"));
  one.batch = 1, one.heads = 3;
  EXPECT_THAT(hold_against_reference(one, c10::kBFloat16), ran("6chunks9warpgroup"));
  EXPECT_THAT(hold_against_reference(one, c10::kFloat), ran("11chunks_fp32"));
}

TEST(EmulatedKernels, OfHeadsOf128ChannelsHaveRoomForFewer) {
  AttentionCase one = {.name = "fewer", .length = 200, .head_dim = 80, .bandwidth = 20};
  one.mask = MaskPattern::kInterior;
  EXPECT_THAT(hold_against_reference(one, c10::kBFloat16), ran("10warpgroups"));
}

TEST(EmulatedKernels, OfFastWeightsJoinSegmentsAndTakeMasks) {
  bench::FastWeightCase one;
  one.attention = {.name = "fast_weight", .batch = 1, .length = 530, .heads = 2, .head_dim = 16};
  one.attention.unit_features = true, one.attention.mask = MaskPattern::kRight;
  one.attention.feature_maps = {kElu};
  EXPECT_THAT(hold_against_reference(one, c10::kBFloat16), ran("11fast_weight"));
}

// What a GPU's forward keeps for backward is asked for by the tensors' device: here by hand.
struct KeepsTheWalk : torch::autograd::Function<KeepsTheWalk> {
  using Tensors = torch::autograd::variable_list;
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& q,
                            const at::Tensor& k, const at::Tensor& v, const at::Tensor& beta,
                            const FastWeightOptions& options) {
    const FastWeightForward made = dispatch_forward({q, k, v, beta}, options, Kept::kWalk);
    context->save_for_backward({q, k, v, beta, made.memories, made.key_sums, made.walk});
    const PackedOptions packed = pack_options(options);
    context->saved_data["codes"] = packed.codes, context->saved_data["scales"] = packed.scales;
    return made.out;
  }
  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& grad_out) {
    using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
    using Signature =
        Gradients(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                  const at::Tensor&, const std::optional<at::Tensor>&, const at::Tensor&,
                  const at::Tensor&, const at::Tensor&, at::IntArrayRef, at::ArrayRef<double>);
    const auto op = c10::Dispatcher::singleton()
                        .findSchemaOrThrow("fmmformer::fast_weight_attention_backward", "")
                        .typed<Signature>();
    const Tensors s = context->get_saved_variables();
    const auto [dq, dk, dv, dbeta] = op.call(
        grad_out[0], s[0], s[1], s[2], s[3], std::nullopt, s[4], s[5], s[6],
        context->saved_data["codes"].toIntVector(), context->saved_data["scales"].toDoubleVector());
    return {dq, dk, dv, dbeta, {}};
  }
};

TEST(EmulatedKernels, OfFastWeightsGoBackwardAtOnceInShortSequences) {
  bench::FastWeightCase one;
  one.attention = {.name = "fast_weight", .length = 100, .heads = 3, .head_dim = 16};
  one.attention.unit_features = true, one.attention.feature_maps = {kElu};
  const std::string kernels = hold_against_reference(
      one, c10::kBFloat16, [](const FastWeightInputs& inputs, const FastWeightOptions& options) {
        return KeepsTheWalk::apply(inputs.q, inputs.k, inputs.v, inputs.beta, options);
      });
  EXPECT_THAT(kernels, HasSubstr("short_backward"));
}

TEST(EmulatedKernels, OfDecodingAgreeWithTheWholeSequenceAtOnce) {
  hold_decoding_against_reference(64, c10::kFloat, 1e-5);
}
TEST(EmulatedKernels, LeaveForDecodingTheStateOfFewerChannelsThanTheyHaveRoomFor) {
  hold_decoding_against_reference(48, c10::kFloat, 1e-5);
  hold_decoding_against_reference(40, c10::kBFloat16, 5e-2);
  hold_decoding_against_reference(80, c10::kBFloat16, 5e-2);
}

}  // namespace
}  // namespace fmmformer::emulator
