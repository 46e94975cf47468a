// SPDX-License-Identifier: Apache-2.0
#include "bench/memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace fmmformer::bench {
namespace {

constexpr int64_t kMebibyte = 1 << 20;

at::Tensor bytes(int64_t count) { return at::empty({count}, at::kByte); }

TEST(PeakMemory, IsTheMostThatLivedAtOneTime) {
  const int64_t peak = peak_tensor_bytes([] {
    { const at::Tensor first = bytes(4 * kMebibyte); }
    const at::Tensor second = bytes(3 * kMebibyte);
    const at::Tensor third = bytes(2 * kMebibyte);
  });
  EXPECT_NEAR(static_cast<double>(peak), 5.0 * kMebibyte, 0.05 * kMebibyte);
}

TEST(PeakMemory, LeavesOutWhatWasThereBefore) {
  const at::Tensor before = bytes(8 * kMebibyte);
  const int64_t peak =
      peak_tensor_bytes([&] { const at::Tensor copy = before.slice(0, 0, kMebibyte).clone(); });
  EXPECT_NEAR(static_cast<double>(peak), 1.0 * kMebibyte, 0.05 * kMebibyte);
}

TEST(PeakMemory, ViewsCostNothing) {
  const at::Tensor before = bytes(kMebibyte);
  EXPECT_LT(peak_tensor_bytes([&] {
              const at::Tensor view = before.view({1024, 1024}).t();
            }),
            4096);
}

}  // namespace
}  // namespace fmmformer::bench
