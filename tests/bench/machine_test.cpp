// SPDX-License-Identifier: Apache-2.0
#include "bench/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fmmformer::bench {
namespace {

TEST(Machine, DescriptionNamesAllThatATimingDependsOn) {
  const Machine machine = describe_machine();
  EXPECT_FALSE(machine.cpu.empty());
  EXPECT_GE(machine.cores, 1);
  EXPECT_GE(machine.threads, 1);
  EXPECT_FALSE(machine.instruction_set.empty());
  EXPECT_GT(machine.product_rate, 1e8);
  EXPECT_THAT(machine_text(machine), testing::HasSubstr("GFLOP/s"));
  EXPECT_THAT(machine_text(machine), testing::HasSubstr(machine.torch_version));
}

TEST(Machine, OtherProgramsAreCountedAsThreads) {
  const double others = busy_threads_elsewhere();
  EXPECT_GE(others, 0);
  EXPECT_LT(others, 10000);
}

}  // namespace
}  // namespace fmmformer::bench
