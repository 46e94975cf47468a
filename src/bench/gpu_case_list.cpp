// SPDX-License-Identifier: Apache-2.0
// The shapes that are timed on a GPU, with what they may take there.
#include <array>
#include <utility>

#include "bench/attention_cases.h"

namespace fmmformer::bench {
namespace {

using enum FeatureMap;

constexpr double kMillisecond = 1e-3;
constexpr int64_t kMebibyte = 1 << 20;

/// Feature maps and bandwidth, as in "3 + 30".
struct Fields {
  size_t maps;
  int64_t bandwidth;
};

AttentionCase gpu_case(std::string name, std::array<int64_t, 4> bnhd, Fields fields) {
  const std::vector<FeatureMap> three = {kElu, kEluFlip, kTanh1};
  return {.name = "gpu_" + std::move(name),
          .batch = bnhd[0],
          .length = bnhd[1],
          .heads = bnhd[2],
          .head_dim = bnhd[3],
          .bandwidth = fields.bandwidth,
          .feature_maps = {three.begin(), three.begin() + static_cast<std::ptrdiff_t>(fields.maps)},
          .dtypes = {c10::kBFloat16, c10::kFloat},
          .tags = {CaseTag::kGpu}};
}

AttentionCase limited(AttentionCase c, double milliseconds) {
  c.gpu_limit = {.seconds = milliseconds * kMillisecond};
  return c;
}

/// As the Long Range Arena has them: two-sided, padded.
AttentionCase padded(AttentionCase c) {
  c.causal = false;
  c.mask = MaskPattern::kQuarter;
  return c;
}

}  // namespace

std::vector<AttentionCase> make_gpu_cases() {
  std::vector<AttentionCase> cases;
  const auto add = [&cases](AttentionCase c) { cases.push_back(std::move(c)); };
  add(limited(gpu_case("65536_r3_band30", {1, 65536, 8, 64}, {3, 30}), 1.6));
  cases.back().gpu_limit->peak_bytes = 420 * kMebibyte;
  add(limited(gpu_case("65536_r2_band20", {1, 65536, 8, 64}, {2, 20}), 0.9));
  add(limited(gpu_case("65536_r1_band5", {1, 65536, 8, 64}, {1, 5}), 0.6));
  // Four and sixteen times as long as the first, and a tenth.
  add(limited(gpu_case("262144_r3_band30", {1, 262144, 8, 64}, {3, 30}), 4 * 1.6 * 1.1));
  add(limited(gpu_case("1048576_r3_band30", {1, 1048576, 8, 64}, {3, 30}), 16 * 1.6 * 1.1));
  add(limited(gpu_case("wikitext", {96, 256, 8, 16}, {2, 20}), 0.06));
  add(padded(limited(gpu_case("listops", {32, 2048, 2, 32}, {2, 5}), 0.08)));
  add(padded(limited(gpu_case("text", {32, 4096, 2, 32}, {2, 5}), 0.15)));
  add(padded(limited(gpu_case("image", {256, 1024, 2, 32}, {2, 5}), 0.25)));
  add(limited(gpu_case("copy", {64, 512, 8, 32}, {3, 30}), 0.15));
  cases.back().near_dropout = 0.1;
  cases.back().weights = WeightShape::kPerChannel;
  add(limited(gpu_case("medium", {8, 1024, 8, 64}, {2, 20}), 0.09));
  add(limited(gpu_case("wide_heads", {1, 8192, 96, 128}, {2, 20}), 3.0));
  // The same number of tokens, ever shorter: from where on is softmax faster?
  for (const int64_t length : {2048, 1024, 512, 256, 128}) {
    add(gpu_case("short_" + std::to_string(length), {32768 / length, length, 8, 64}, {2, 20}));
  }
  return cases;
}

}  // namespace fmmformer::bench
