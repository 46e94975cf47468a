// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "fmmformer/attention/fmm_attention.h"

namespace fmmformer {
namespace {

/// Whether the system was asked for huge pages under this address ("hg" in /proc/self/smaps).
bool wants_huge_pages(const void* address) {
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    uintptr_t begin = 0, end = 0;
    char dash = 0;
    if (std::istringstream range(line); range >> std::hex >> begin >> dash >> end && dash == '-') {
      const auto wanted = reinterpret_cast<uintptr_t>(address);
      inside = begin <= wanted && wanted < end;
    } else if (inside && line.starts_with("VmFlags:")) {
      return line.find(" hg") != std::string::npos;
    }
  }
  return false;
}

const void* middle_of(const at::Tensor& tensor) {
  return static_cast<const char*>(tensor.data_ptr()) + tensor.nbytes() / 2;
}

TEST(FmmAttention, LargeResultsAskForHugePagesAndSmallOnesDoNot) {
  if (!std::filesystem::exists("/sys/kernel/mm/transparent_hugepage"))
    GTEST_SKIP() << "this system has no huge pages to ask for";
  for (const bool large : {true, false}) {
    const int64_t length = large ? 32 << 10 : 1 << 10;  // 32 MiB a tensor, or 1
    at::Tensor q = at::rand({1, length, 4, 64}).requires_grad_();
    at::Tensor out = fmm_attention({q, q.detach(), q.detach()}, {},
                                   {.causal = true, .feature_maps = {FeatureMap::kElu}});
    out.sum().backward();
    EXPECT_EQ(wants_huge_pages(middle_of(out)), large);
    EXPECT_EQ(wants_huge_pages(middle_of(q.grad())), large);
  }
}

}  // namespace
}  // namespace fmmformer
