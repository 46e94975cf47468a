// SPDX-License-Identifier: Apache-2.0
// Runs where there is a GPU.
#include "bench/gpu_timing.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include "bench/gpu.h"
#include "bench/gpu_benchmark.h"

namespace fmmformer::bench {
namespace {

class GpuTiming : public testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "there is no GPU here";
  }
  c10::Device device_{c10::kCUDA, 0};
};

TEST_F(GpuTiming, PeakMemoryIsWhatLivedBeyondWhatWasThere) {
  const auto bytes = [&](int64_t count) { return at::empty({count}, at::device(device_)); };
  const at::Tensor before = bytes(1 << 20);
  const int64_t peak = peak_gpu_bytes(device_, [&] {
    { const at::Tensor first = bytes(3 << 20); }
    const at::Tensor second = bytes(2 << 20);
  });
  EXPECT_EQ(peak, 4 * (3 << 20));
}

TEST_F(GpuTiming, AReplayedGraphDoesItsWorkAgain) {
  const OwnStream stream(device_);
  const at::Tensor counter = at::zeros({1}, at::device(device_));
  ReplayedGraph graph([&] { counter.add_(1); });
  const double before = counter.item<double>();
  graph.replay();
  graph.replay();
  EXPECT_EQ(counter.item<double>(), before + 2);
}

TEST_F(GpuTiming, ACopyRunsAtAPlausibleRate) {
  const double rate = measure_copy_rate(device_);
  EXPECT_GT(rate, 1e10);
  EXPECT_LT(rate, 1e14);
}

TEST_F(GpuTiming, ACaseIsTimedBesideSoftmax) {
  AttentionCase small = case_named("gpu_listops");
  small.batch = 2;
  GpuBenchmarkOptions options{.peers = {&peer_named("sdpa")}, .copy_rate = 1e12};
  options.plan.seconds = 0.01;
  const GpuRow row = measure_gpu_case(small, c10::kBFloat16, options);
  ASSERT_TRUE(row.failure.empty()) << row.failure;
  EXPECT_GT(row.forward.median, 0);
  EXPECT_GT(row.ours.graph.median, row.forward.median);
  EXPECT_GT(row.ours.peak_bytes, 0);
  ASSERT_NE(row.peer("sdpa"), nullptr);
  EXPECT_GT(row.peer("sdpa")->graph.median, 0);
}

TEST_F(GpuTiming, AStepTakesMicroseconds) {
  const double seconds = measure_gpu_step(c10::kBFloat16, {}).median;
  EXPECT_GT(seconds, 1e-7);
  EXPECT_LT(seconds, 1e-3);
}

}  // namespace
}  // namespace fmmformer::bench
