// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_variants.h"

#include <gmock/gmock.h>

#include <set>

namespace fmmformer::bench {
namespace {

using testing::IsSupersetOf;

TEST(GpuVariants, ChangeOneThingOfEveryKindOfHead) {
  std::set<std::string> named;
  std::set<int64_t> plain_dims, changed_dims;
  for (const GpuVariant& variant : gpu_variants()) {
    EXPECT_TRUE(named.insert(variant.plain.name + variant.change).second) << variant.change;
    plain_dims.insert(variant.plain.head_dim), changed_dims.insert(variant.changed.head_dim);
    const AttentionCase &a = variant.plain, &b = variant.changed;
    const int changes = (a.length != b.length) + (a.mask != b.mask) + (a.layout != b.layout) +
                        (a.near_dropout != b.near_dropout) + (a.weights != b.weights) +
                        (a.head_dim != b.head_dim);
    EXPECT_EQ(changes, 1) << variant.plain.name << " " << variant.change;
  }
  EXPECT_THAT(plain_dims, IsSupersetOf({16, 32, 64, 128}));
  EXPECT_THAT(changed_dims, IsSupersetOf({48, 80, 96}));
}

TEST(GpuVariants, MayTakeThreeTenthsMore) {
  const GpuVariant variant = gpu_variants().front();
  const Bar within = variant_bar(variant, c10::kBFloat16, 1.25);
  EXPECT_TRUE(within.met);
  EXPECT_EQ(within.measured, "1.25 x");
  EXPECT_EQ(within.wanted, "<= 1.3 x");
  EXPECT_EQ(within.what,
            "bf16: time of gpu_wikitext with an odd length over that of the plain case");
  EXPECT_FALSE(variant_bar(variant, c10::kFloat, 1.31).met);
}

TEST(GpuVariants, ThatDoNotFitMissTheirBar) {
  const Bar bar = variant_bar(gpu_variants().front(), c10::kBFloat16, std::nullopt);
  EXPECT_FALSE(bar.met);
  EXPECT_EQ(bar.measured, "no memory");
}

}  // namespace
}  // namespace fmmformer::bench
