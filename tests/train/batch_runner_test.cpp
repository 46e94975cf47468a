// SPDX-License-Identifier: Apache-2.0
#include "train/batch_runner.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "train/small_experiment.h"

namespace fmmformer::train {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

StepBatches two_parts() {
  Batch batch{.size = 2, .length = 100};
  batch.tokens.assign(200, 0), batch.targets.assign(200, 0);
  Batch other = batch;
  std::fill_n(other.targets.begin(), 150, 3);
  return {batch, other};
}

TEST(BatchRunner, GivesRowsToTheClustersOfEachPartOnAGpu) {
  const RunnerOptions options{.device = at::kCUDA, .cutoffs = {2, 4}};
  EXPECT_THAT(step_capacities(two_parts(), options),
              ElementsAre(ElementsAre(128, 128), ElementsAre(160, 128)));
}

TEST(BatchRunner, LeavesSizesToTheDataOnACpuAndWithoutClusters) {
  EXPECT_THAT(step_capacities(two_parts(), {.device = at::kCPU, .cutoffs = {2, 4}}),
              ElementsAre(IsEmpty(), IsEmpty()));
  EXPECT_THAT(step_capacities(two_parts(), {.device = at::kCUDA}),
              ElementsAre(IsEmpty(), IsEmpty()));
}

TEST(BatchRunner, TheWorkIsToldOfTheRows) {
  StepInputs inputs;
  inputs.parts.resize(2);
  inputs = with_capacities(std::move(inputs), {{128}, {160}});
  EXPECT_THAT(inputs.parts[0].inputs.cluster_capacities, ElementsAre(128));
  EXPECT_THAT(inputs.parts[1].inputs.cluster_capacities, ElementsAre(160));
}

TEST(BatchRunner, OnlyAnAdaptiveSoftmaxHasCutoffs) {
  EXPECT_THAT(cutoffs_of(small_experiment().model), IsEmpty());
  EXPECT_THAT(cutoffs_of(small_experiment({"model.output=adaptive_softmax", "model.cutoffs=[2,4]",
                                           "model.positions=learned"})
                             .model),
              ElementsAre(2, 4));
  EXPECT_THAT(cutoffs_of(small_experiment({"model.cutoffs=[2,4]"}).model), IsEmpty());
}

}  // namespace
}  // namespace fmmformer::train
