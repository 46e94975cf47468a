// SPDX-License-Identifier: Apache-2.0
#include "bench/peers.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fmmformer/attention/fmm_reference.h"

namespace fmmformer::bench {
namespace {

void expect_same(const std::vector<NamedTensor>& found, const std::vector<NamedTensor>& expected,
                 const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    const at::Tensor& truth = expected[i].tensor;
    const double scale = std::max(1.0, truth.abs().max().item<double>());
    const double error = (found[i].tensor - truth).abs().max().item<double>();
    EXPECT_LE(error, 1e-10 * scale) << what << " " << found[i].name;
  }
}

/// One test per peer that computes FMM attention.
class FmmPeer : public testing::TestWithParam<std::string> {};

TEST_P(FmmPeer, EqualsTheReferenceOnEveryCaseItSupports) {
  const Peer& peer = peer_named(GetParam());
  int compared = 0;
  for (const AttentionCase& one : cases_with_tag(CaseTag::kQuick)) {
    if (!reason_against(peer, one).empty() || one.length > 300) continue;
    // torch's elu(x) + 1 has few digits where x is far below 0.
    if (one.extreme_query != 0) continue;
    const CaseTensors tensors = make_inputs(one, c10::kDouble, 3);
    expect_same(evaluate(peer.run, tensors), evaluate(fmm_attention_reference, tensors), one.name);
    ++compared;
  }
  EXPECT_GT(compared, 50);
}

TEST_P(FmmPeer, GivesTheSameInItsBestLayout) {
  const Peer& peer = peer_named(GetParam());
  const CaseTensors tensors = make_inputs(case_named("band_30_causal"), c10::kDouble, 3);
  expect_same(evaluate(peer.run, in_layout(tensors, peer.best_layout)), evaluate(peer.run, tensors),
              "layout");
}

INSTANTIATE_TEST_SUITE_P(Peers, FmmPeer, testing::Values("composite", "dense_near"),
                         [](const auto& info) { return info.param; });

TEST(SoftmaxPeer, EqualsTheReferenceWithABandOverEverything) {
  for (const bool causal : {true, false}) {
    const AttentionCase full{.name = "full",
                             .bandwidth = 97,
                             .causal = causal,
                             .feature_maps = {},
                             .weights = WeightShape::kNone};
    const CaseTensors tensors = make_inputs(full, c10::kDouble, 3);
    expect_same(evaluate(peer_named("sdpa").run, tensors),
                evaluate(fmm_attention_reference, tensors), "sdpa");
  }
}

TEST(Peers, AnUnknownOneIsAnsweredWithTheList) {
  try {
    peer_named("flash");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("sdpa, composite, dense_near"));
  }
}

TEST(Peers, SayWhyTheyCannotRunACase) {
  EXPECT_THAT(reason_against(peer_named("composite"), case_named("mask_left_causal")),
              testing::HasSubstr("mask"));
  EXPECT_THAT(reason_against(peer_named("sdpa"), case_named("dropout_causal")),
              testing::HasSubstr("dropout"));
}

}  // namespace
}  // namespace fmmformer::bench
