// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/attention/fast_weight_decode.h"

#include <gmock/gmock.h>
#include <torch/types.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "core/temporary_folder.h"
#include "fmmformer/attention/fmm_decode.h"

namespace fmmformer {
namespace {

using testing::AllOf, testing::HasSubstr, testing::ThrowsMessage;

constexpr FastWeightOptions kOptions{.normaliser = FastWeightNormaliser::kOutputAndKey,
                                     .far_scale = 0.5};

struct Tokens {
  at::Tensor q, k, v, beta;
  FastWeightInputs until(int64_t end) const {
    const auto cut = [end](const at::Tensor& x) { return x.narrow(1, 0, end); };
    return {cut(q), cut(k), cut(v), cut(beta)};
  }
  FastWeightInputs at(int64_t i) const {
    return {q.select(1, i), k.select(1, i), v.select(1, i), beta.select(1, i)};
  }
};

Tokens random_tokens(int64_t batch, int64_t length, at::ScalarType type = at::kDouble) {
  const auto draw = [&](int64_t dim) {
    return torch::randn({batch, length, 2, dim}, at::kDouble).to(type);
  };
  return {draw(5), draw(5), draw(7), torch::rand({batch, length, 2}, at::kDouble).to(type)};
}

TEST(FastWeightDecode, PrefillThenStepsEqualTheWholeSequenceAtOnce) {
  const Tokens tokens = random_tokens(2, 40);
  for (const auto& normaliser : EnumTable<FastWeightNormaliser>::entries()) {
    FastWeightOptions options = kOptions;
    options.normaliser = normaliser.value;
    const at::Tensor whole = fast_weight_attention(tokens.until(40), options);
    for (const int64_t prompt : {1, 3, 32, 39}) {
      auto [out, state] = fast_weight_attention_prefill(tokens.until(prompt), options);
      EXPECT_TRUE(at::allclose(out, whole.narrow(1, 0, prompt)));
      for (int64_t i = prompt; i < 40; ++i) {
        const at::Tensor step = fast_weight_attention_step(tokens.at(i), state, options);
        EXPECT_TRUE(at::allclose(step, whole.select(1, i)))
            << normaliser.name << ", prompt " << prompt << ", token " << i;
      }
      EXPECT_EQ(state.tokens[0].item<int64_t>(), 40);
    }
  }
}

TEST(FastWeightDecode, APromptOfSeveralSegmentsGoesOnToo) {
  const Tokens tokens = random_tokens(2, 1030);
  const at::Tensor whole = fast_weight_attention(tokens.until(1030), kOptions);
  auto [out, state] = fast_weight_attention_prefill(tokens.until(1029), kOptions);
  EXPECT_TRUE(at::allclose(fast_weight_attention_step(tokens.at(1029), state, kOptions),
                           whole.select(1, 1029)));
}

TEST(FastWeightDecode, PaddedPromptsGoOnAsEachWouldAlone) {
  const Tokens tokens = random_tokens(1, 20);
  auto [alone_out, alone] = fast_weight_attention_prefill(tokens.until(15), kOptions);
  for (const int64_t pads_in_front : {0, 4}) {
    Tokens padded = random_tokens(1, 19);
    const at::Tensor mask = torch::zeros({1, 19}, torch::kBool);
    mask.narrow(1, pads_in_front, 15).fill_(true);
    for (auto [to, from] : {std::pair{padded.q, tokens.q},
                            {padded.k, tokens.k},
                            {padded.v, tokens.v},
                            {padded.beta, tokens.beta}}) {
      to.fill_(std::nan(""));
      to.narrow(1, pads_in_front, 15).copy_(from.narrow(1, 0, 15));
    }
    FastWeightInputs inputs = padded.until(19);
    inputs.token_mask = mask;
    auto [out, state] = fast_weight_attention_prefill(inputs, kOptions);
    EXPECT_TRUE(at::allclose(out.narrow(1, pads_in_front, 15), alone_out));
    EXPECT_EQ(state.tokens.item<int64_t>(), 15);
    FastWeightState expected = alone.clone();
    for (int64_t i = 15; i < 20; ++i) {
      EXPECT_TRUE(at::allclose(fast_weight_attention_step(tokens.at(i), state, kOptions),
                               fast_weight_attention_step(tokens.at(i), expected, kOptions)));
    }
  }
}

TEST(FastWeightDecode, ADeadPromptLeavesTheFirstTokenFirst) {
  const Tokens tokens = random_tokens(1, 3);
  FastWeightInputs dead = tokens.until(2);
  dead.token_mask = torch::zeros({1, 2}, torch::kBool);
  auto [out, state] = fast_weight_attention_prefill(dead, kOptions);
  const auto last = [](const at::Tensor& x) { return x.narrow(1, 2, 1); };
  const at::Tensor alone = fast_weight_attention(
      {last(tokens.q), last(tokens.k), last(tokens.v), last(tokens.beta)}, kOptions);
  EXPECT_TRUE(
      at::allclose(fast_weight_attention_step(tokens.at(2), state, kOptions), alone.select(1, 0)));
}

TEST(FastWeightDecode, AMaskedStepGivesZerosAndIsForgotten) {
  const Tokens tokens = random_tokens(2, 12);
  auto [out, state] = fast_weight_attention_prefill(tokens.until(8), kOptions);
  FastWeightInputs token = tokens.at(8);
  token.q[1].fill_(std::nan(""));
  token.token_mask = torch::tensor({true, false});
  const FastWeightState before = state.clone();
  const at::Tensor step = fast_weight_attention_step(token, state, kOptions);
  EXPECT_TRUE(at::equal(step[1], torch::zeros_like(step[1])));
  EXPECT_TRUE(at::equal(state.memory[1], before.memory[1]));
  EXPECT_TRUE(at::equal(state.key_sums[1], before.key_sums[1]));
  EXPECT_TRUE(at::equal(state.tokens, torch::tensor({int64_t{9}, int64_t{8}})));
}

TEST(FastWeightDecode, ASavedStateGoesOnWhereItWas) {
  const TemporaryFolder folder;
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const Tokens tokens = random_tokens(2, 12, type);
    auto [out, state] = fast_weight_attention_prefill(tokens.until(8), kOptions);
    const std::string path = (folder.path() / "state.safetensors").string();
    state.save(path);
    FastWeightState loaded = FastWeightState::load(path);
    EXPECT_TRUE(at::equal(fast_weight_attention_step(tokens.at(8), loaded, kOptions),
                          fast_weight_attention_step(tokens.at(8), state, kOptions)));
  }
}

TEST(FastWeightDecode, ADamagedOrForeignStateFileIsRefusedByName) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "state.safetensors").string();
  auto [out, state] = fast_weight_attention_prefill(random_tokens(1, 8).until(8), kOptions);
  state.save(path);
  EXPECT_THAT([&] { FmmState::load(path); },
              ThrowsMessage<c10::ValueError>(HasSubstr("no saved FmmState")));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_THAT([&] { FastWeightState::load(path); },
              ThrowsMessage<c10::ValueError>(HasSubstr(path)));
  EXPECT_THAT([&] { FastWeightState::load(path + ".missing"); },
              ThrowsMessage<c10::ValueError>(HasSubstr("missing")));
}

TEST(FastWeightDecode, AStateOfOtherFeaturesOrShapesIsRefused) {
  const Tokens tokens = random_tokens(1, 9), wider = random_tokens(2, 9);
  auto [out, state] = fast_weight_attention_prefill(tokens.until(8), kOptions);
  FastWeightOptions other = kOptions;
  other.feature_map = FeatureMap::kTanh1;
  EXPECT_THAT(
      [&] { fast_weight_attention_step(tokens.at(8), state, other); },
      ThrowsMessage<c10::ValueError>(AllOf(HasSubstr("elu with unit_features"),
                                           HasSubstr("this call has tanh1 with unit_features"))));
  other = kOptions;
  other.normaliser = FastWeightNormaliser::kNone;
  EXPECT_THAT([&] { fast_weight_attention_step(tokens.at(8), state, other); },
              ThrowsMessage<c10::ValueError>(HasSubstr("and normaliser none")))
      << "which makes other memories";
  EXPECT_THAT([&] { fast_weight_attention_step(wider.at(8), state, kOptions); },
              ThrowsMessage<c10::ValueError>(HasSubstr("the state's memory has shape")));
  EXPECT_THAT([&] { fast_weight_attention_step(tokens.until(1), state, kOptions); },
              ThrowsMessage<c10::ValueError>(HasSubstr("one token")));
}

}  // namespace
}  // namespace fmmformer
