// SPDX-License-Identifier: Apache-2.0
// An adaptive softmax whose shapes do not depend on the data.
#include "fmmformer/nn/cluster_capacity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fmmformer/nn/adaptive_softmax.h"
#include "nn/compacted_rows.h"
#include "nn/helpers.h"

namespace fmmformer {
namespace {

using namespace fmmformer::testing;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using torch::Tensor;

TEST(ClusterCapacity, HoldsItsMembersAndWastesAQuarterAtMost) {
  for (int64_t members = 0; members < 24'576; ++members) {
    const int64_t capacity = cluster_capacity(members, 24'576);
    ASSERT_GE(capacity, members);
    ASSERT_LE(4 * capacity, std::max<int64_t>(5 * members, 4 * 128 + 4 * 32)) << members;
  }
}

TEST(ClusterCapacity, IsCoarseSoThatFewGraphsServeManyBatches) {
  EXPECT_EQ(cluster_capacity(0, 24'576), 128);
  EXPECT_EQ(cluster_capacity(518, 24'576), 640);
  EXPECT_EQ(cluster_capacity(640, 24'576), 640);
  EXPECT_EQ(cluster_capacity(641, 24'576), 768);
  EXPECT_EQ(cluster_capacity(24'576, 24'576), 24'576);
  EXPECT_EQ(cluster_capacity(3, 20), 20) << "never more than there are tokens";
}

TEST(ClusterCapacity, TargetsAreCountedByCluster) {
  std::vector<int64_t> targets(1000, 3);
  std::fill_n(targets.begin(), 200, 10);   // the first of cluster 0
  std::fill_n(targets.begin(), 130, 999);  // of the last, which has no end
  EXPECT_THAT(cluster_capacities(targets, std::vector<int64_t>{10, 20, 35}),
              ElementsAre(128, 128, 160));
  EXPECT_THAT(cluster_capacities(targets, {}), IsEmpty());
}

TEST(CompactedRows, MembersMoveTogetherAndBack) {
  const Tensor member = torch::tensor({false, true, false, true, true}),
               x = torch::arange(10, torch::kDouble).view({5, 2}).requires_grad_();
  const CompactedRows rows(member, 4);
  const Tensor selected = rows.select(x);
  EXPECT_TRUE(torch::equal(selected.slice(0, 0, 3), x.index({member})));
  EXPECT_EQ(selected.size(0), 4);

  const Tensor values = torch::tensor({7., 8., 9., 99.}, torch::requires_grad());
  const Tensor placed = rows.place(values);
  EXPECT_TRUE(torch::equal(placed, torch::tensor({0., 7., 0., 8., 9.})));

  // The gradient of the row that is nobody's goes nowhere, and is none.
  selected.backward(torch::ones({4, 2}, torch::kDouble));
  EXPECT_TRUE(torch::equal(x.grad(), member.unsqueeze(1).expand({5, 2}).to(torch::kDouble)));
  placed.backward(torch::tensor({1., 2., 3., 4., 5.}));
  EXPECT_TRUE(torch::equal(values.grad(), torch::tensor({2., 4., 5., 0.})));
}

TEST(CompactedRows, NoMembersAndAllMembersAreFine) {
  const Tensor x = torch::randn({5, 2}), none = torch::zeros({5}, torch::kBool);
  EXPECT_TRUE(CompactedRows(none, 2).place(torch::ones({2})).eq(0).all().item<bool>());
  const CompactedRows all(torch::ones({5}, torch::kBool), 5);
  EXPECT_TRUE(torch::equal(all.select(x), x));
  EXPECT_TRUE(torch::equal(all.place(x.select(1, 0)), x.select(1, 0)));
}

TEST(CompactedRows, AMemberWithoutRoomIsNotForgotten) {
  const Tensor member = torch::tensor({true, true, false, true});
  const Tensor placed = CompactedRows(member, 2).place(torch::tensor({1., 2.}));
  EXPECT_EQ(placed[1].item<double>(), 2);
  EXPECT_EQ(placed[2].item<double>(), 0);
  EXPECT_TRUE(placed[3].isnan().item<bool>());
}

/// In double, against the full distribution.
struct FixedShapes : ::testing::Test {
  FixedShapes() {
    fill(softmax);
    softmax.to(torch::kDouble);
    at::NoGradGuard no_gradients;
    softmax.bias.normal_();
  }

  std::vector<Tensor> gradients(const Tensor& loss) {
    softmax.zero_grad();
    table.mutable_grad().reset(), hidden.mutable_grad().reset();
    loss.backward(grad);
    std::vector<Tensor> all = {table.grad().clone(), hidden.grad().clone()};
    for (const Tensor& parameter : softmax.parameters()) all.push_back(parameter.grad().clone());
    return all;
  }

  void expect_exact(const Tensor& targets, at::IntArrayRef capacities) {
    const Tensor plain =
        -softmax.log_probabilities(hidden, table).gather(1, targets.unsqueeze(1)).squeeze(1);
    const Tensor ours = softmax.losses(hidden, targets, table, capacities);
    EXPECT_LT(largest_difference(ours, plain), 1e-12);
    const auto a = gradients(ours), b = gradients(plain);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_LT(largest_difference(a[i], b[i]), 1e-12) << i;
  }

  const torch::TensorOptions options = torch::dtype(torch::kDouble).requires_grad(true);
  AdaptiveSoftmax softmax{50, 8, {10, 20, 35}};
  Tensor table = torch::randn({50, 8}, options), hidden = torch::randn({200, 8}, options);
  Tensor grad = torch::randn({200}, torch::kDouble);
};

TEST_F(FixedShapes, GiveTheLossesAndGradientsOfTheFullDistribution) {
  const Tensor targets = torch::randint(50, {200});
  expect_exact(targets, {});
  expect_exact(targets, {200, 199, 198});
  const std::vector<int64_t> list(targets.const_data_ptr<int64_t>(),
                                  targets.const_data_ptr<int64_t>() + 200);
  expect_exact(targets, cluster_capacities(list, std::vector<int64_t>{10, 20, 35}));
}

TEST_F(FixedShapes, AClusterWithoutATargetIsFine) {
  expect_exact(torch::randint(10, {200}), {128, 128, 128});
  expect_exact(torch::randint(10, 35, {200}), {200, 200, 1});
}

TEST_F(FixedShapes, AllTargetsMayBeInOneCluster) {
  expect_exact(torch::randint(20, 35, {200}), {128, 200, 128});
}

TEST_F(FixedShapes, RowsThatJustSufficeDo) {
  const Tensor targets = torch::randint(10, {200});
  targets.slice(0, 50, 57).fill_(12), targets.slice(0, 150, 153).fill_(49);
  expect_exact(targets, {7, 1, 3});
}

TEST_F(FixedShapes, RowsThatDoNotSufficeAreNotHidden) {
  const Tensor targets = torch::randint(10, {200});
  targets.slice(0, 50, 57).fill_(12);
  const Tensor losses = softmax.losses(hidden, targets, table, {6, 1, 1});
  EXPECT_EQ(losses.isnan().sum().item<int64_t>(), 1);
  EXPECT_TRUE(losses[56].isnan().item<bool>());
}

TEST_F(FixedShapes, GiveTheSameOnAGpuInBothPrecisions) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  {  // numbers that both types have
    at::NoGradGuard no_gradients;
    std::vector<Tensor> all = softmax.parameters();
    all.insert(all.end(), {table, hidden, grad});
    for (Tensor& tensor : all) tensor.copy_(tensor.to(torch::kBFloat16));
  }
  const Tensor targets = torch::randint(50, {200});
  const Tensor exact = softmax.losses(hidden, targets, table);
  const auto exact_gradients = gradients(exact);
  const auto error = [](const Tensor& ours, const Tensor& truth) {
    return ((ours.cpu().to(torch::kDouble) - truth).norm() / truth.norm()).item<double>();
  };
  for (const auto& [type, allowed] :
       {std::pair(torch::kFloat, 1e-5), std::pair(torch::kBFloat16, 1e-2)}) {
    softmax.to(torch::kCUDA, type);
    const Tensor on_gpu = table.detach().to(torch::kCUDA, type).requires_grad_(),
                 rows = hidden.detach().to(torch::kCUDA, type).requires_grad_();
    const Tensor losses = softmax.losses(rows, targets.cuda(), on_gpu, {128, 128, 128});
    EXPECT_LT(error(losses, exact), allowed);
    softmax.zero_grad();
    losses.backward(grad.to(torch::kCUDA, losses.scalar_type()));
    std::vector<Tensor> ours = {on_gpu.grad(), rows.grad()};
    for (const Tensor& parameter : softmax.parameters()) ours.push_back(parameter.grad());
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_LT(error(ours[i], exact_gradients[i]), allowed) << i;
    }
  }
}

TEST_F(FixedShapes, CapacitiesOfAnotherNumberOfClustersAreAnError) {
  EXPECT_THROW(softmax.losses(hidden, torch::randint(50, {200}), table, {9}), c10::ValueError);
}

}  // namespace
}  // namespace fmmformer
