// SPDX-License-Identifier: Apache-2.0
// Decoding by the GPU's kernels, on the CPU, held against the double reference.
#pragma once

#include <gmock/gmock.h>
#include <torch/types.h>

#include "emulator/runtime.h"
#include "fmmformer/attention/fmm_decode.h"
#include "fmmformer/attention/fmm_reference.h"

namespace fmmformer::emulator {

/// Prefill and then steps by their kernels, against the whole sequence at once by the reference.
inline void hold_decoding_against_reference(int64_t head_dim, c10::ScalarType dtype, double allowed,
                                            const std::vector<FeatureMap>& maps = {
                                                FeatureMap::kElu, FeatureMap::kEluFlip}) {
  torch::manual_seed(1);
  take_launches(), take_races();
  watch_races(/*blocks=*/16);
  constexpr int64_t kLength = 137, kPrompt = 130;
  const auto draw = [&] { return torch::randn({2, kLength, 3, head_dim}).to(dtype); };
  const at::Tensor q = draw(), k = draw(), v = draw();
  const FmmOptions options{.window = Window{6, 0}, .causal = true, .feature_maps = maps};
  const auto until = [&](const at::Tensor& x, int64_t end) { return x.narrow(1, 0, end); };
  auto [out, state] = fmm_attention_prefill(
      {.q = until(q, kPrompt), .k = until(k, kPrompt), .v = until(v, kPrompt)}, {}, options);
  std::vector<at::Tensor> rows = {out};
  for (int64_t i = kPrompt; i < kLength; ++i) {
    const AttentionInputs token = {.q = q.select(1, i), .k = k.select(1, i), .v = v.select(1, i)};
    rows.push_back(fmm_attention_step(token, state, {}, options).unsqueeze(1));
  }
  const at::Tensor exact = fmm_attention_reference(
      {.q = q.to(at::kDouble), .k = k.to(at::kDouble), .v = v.to(at::kDouble)}, {}, options);
  const at::Tensor error = (at::cat(rows, 1).to(at::kDouble) - exact).abs().amax({0, 2, 3});
  EXPECT_LE(error.max().item<double>(), allowed) << error;
  EXPECT_THAT(take_races(), testing::IsEmpty());
  const std::vector<std::string> launches = take_launches();
  EXPECT_THAT(launches,
              testing::Contains(testing::HasSubstr("11step_kernel")).Times(kLength - kPrompt));
}

}  // namespace fmmformer::emulator
