// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/attention/fmm_decode.h"

#include <gmock/gmock.h>
#include <torch/types.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "core/temporary_folder.h"

namespace fmmformer {
namespace {

using testing::HasSubstr, testing::ThrowsMessage;

const FmmOptions kDecoding{.window = Window{6, 0},
                           .causal = true,
                           .feature_maps = {FeatureMap::kElu, FeatureMap::kTanh1},
                           .unit_features = true};

struct Tokens {
  at::Tensor q, k, v;
  AttentionInputs until(int64_t end) const {
    return {q.narrow(1, 0, end), k.narrow(1, 0, end), v.narrow(1, 0, end)};
  }
  AttentionInputs at(int64_t i) const { return {q.select(1, i), k.select(1, i), v.select(1, i)}; }
};

Tokens random_tokens(int64_t batch, int64_t length, at::ScalarType type = at::kDouble) {
  const auto draw = [&](int64_t dim) {
    return torch::randn({batch, length, 2, dim}, at::kDouble).to(type);
  };
  return {draw(5), draw(5), draw(7)};
}

TEST(FmmDecode, PrefillThenStepsEqualTheWholeSequenceAtOnce) {
  const Tokens tokens = random_tokens(2, 40);
  const at::Tensor whole = fmm_attention({tokens.q, tokens.k, tokens.v}, {}, kDecoding);
  for (const int64_t prompt : {1, 3, 6, 7, 32, 39}) {
    auto [out, state] = fmm_attention_prefill(tokens.until(prompt), {}, kDecoding);
    EXPECT_TRUE(at::allclose(out, whole.narrow(1, 0, prompt)));
    for (int64_t i = prompt; i < 40; ++i) {
      const at::Tensor step = fmm_attention_step(tokens.at(i), state, {}, kDecoding);
      EXPECT_TRUE(at::allclose(step, whole.select(1, i))) << "prompt " << prompt << ", token " << i;
    }
    EXPECT_EQ(state.position.item<int64_t>(), 40);
  }
}

TEST(FmmDecode, PromptsPaddedOnEitherSideGoOnAsEachWouldAlone) {
  const Tokens tokens = random_tokens(1, 20);
  auto [alone_out, alone] = fmm_attention_prefill(tokens.until(15), {}, kDecoding);
  for (const int64_t pads_in_front : {0, 4}) {
    Tokens padded = random_tokens(1, 19);
    at::Tensor mask = torch::zeros({1, 19}, torch::kBool);
    mask.narrow(1, pads_in_front, 15).fill_(true);
    for (auto [to, from] :
         {std::pair{padded.q, tokens.q}, {padded.k, tokens.k}, {padded.v, tokens.v}}) {
      to.fill_(std::nan(""));
      to.narrow(1, pads_in_front, 15).copy_(from.narrow(1, 0, 15));
    }
    auto [out, state] = fmm_attention_prefill({padded.q, padded.k, padded.v, mask}, {}, kDecoding);
    EXPECT_TRUE(at::allclose(out.narrow(1, pads_in_front, 15), alone_out));
    FmmState expected = alone.clone();
    for (int64_t i = 15; i < 20; ++i) {
      EXPECT_TRUE(at::allclose(fmm_attention_step(tokens.at(i), state, {}, kDecoding),
                               fmm_attention_step(tokens.at(i), expected, {}, kDecoding)));
    }
  }
}

TEST(FmmDecode, AMaskedStepGivesZerosAndIsForgotten) {
  const Tokens tokens = random_tokens(2, 12);
  auto [out, state] = fmm_attention_prefill(tokens.until(8), {}, kDecoding);
  AttentionInputs token = tokens.at(8);
  token.token_mask = torch::tensor({true, false});
  const at::Tensor sums = state.far_sums.clone();
  const at::Tensor step = fmm_attention_step(token, state, {}, kDecoding);
  EXPECT_TRUE(at::equal(step[1], torch::zeros_like(step[1])));
  EXPECT_TRUE(at::equal(state.far_sums[1], sums[1]));
  EXPECT_FALSE(at::equal(state.far_sums[0], sums[0]));
}

TEST(FmmDecode, ASavedStateGoesOnWhereItWas) {
  const TemporaryFolder folder;
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const Tokens tokens = random_tokens(2, 12, type);
    auto [out, state] = fmm_attention_prefill(tokens.until(8), {}, kDecoding);
    const std::string path = (folder.path() / "state.safetensors").string();
    state.save(path);
    FmmState loaded = FmmState::load(path);
    EXPECT_TRUE(at::equal(fmm_attention_step(tokens.at(8), loaded, {}, kDecoding),
                          fmm_attention_step(tokens.at(8), state, {}, kDecoding)));
  }
}

TEST(FmmDecode, ADamagedStateFileIsRefusedByName) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "state.safetensors").string();
  auto [out, state] = fmm_attention_prefill(random_tokens(1, 8).until(8), {}, kDecoding);
  state.save(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_THAT([&] { FmmState::load(path); }, ThrowsMessage<c10::ValueError>(HasSubstr(path)));
  std::ofstream(path) << "something else";
  EXPECT_THAT([&] { FmmState::load(path); }, ThrowsMessage<c10::ValueError>(HasSubstr(path)));
  EXPECT_THAT([&] { FmmState::load(path + ".missing"); },
              ThrowsMessage<c10::ValueError>(HasSubstr("missing")));
}

TEST(FmmDecode, AStateOfOtherOptionsIsRefused) {
  const Tokens tokens = random_tokens(1, 9);
  auto [out, state] = fmm_attention_prefill(tokens.until(8), {}, kDecoding);
  FmmOptions other = kDecoding;
  other.window = Window{3, 0};
  EXPECT_THAT([&] { fmm_attention_step(tokens.at(8), state, {}, other); },
              ThrowsMessage<c10::ValueError>(HasSubstr("the state's keys has shape")));
}

TEST(FmmDecode, AStateOfOtherFeatureMapsIsRefusedThoughItsShapesFit) {
  const TemporaryFolder folder;
  const Tokens tokens = random_tokens(1, 9);
  auto [out, state] = fmm_attention_prefill(tokens.until(8), {}, kDecoding);
  const std::string path = (folder.path() / "state.safetensors").string();
  state.save(path);
  FmmState loaded = FmmState::load(path), copy = state.clone();
  FmmOptions other_maps = kDecoding, other_kind = kDecoding;
  other_maps.feature_maps = {FeatureMap::kElu, FeatureMap::kEluFlip};
  other_kind.unit_features = false;
  for (FmmState* one : {&state, &loaded, &copy}) {
    EXPECT_THAT([&] { fmm_attention_step(tokens.at(8), *one, {}, other_maps); },
                ThrowsMessage<c10::ValueError>(
                    HasSubstr("(elu, tanh1) with unit_features, this call has (elu, elu_flip)")));
    EXPECT_THAT([&] { fmm_attention_step(tokens.at(8), *one, {}, other_kind); },
                ThrowsMessage<c10::ValueError>(HasSubstr("unit_features")));
  }
}

TEST(FmmDecode, AMistakeInAStepShowsTheShapesOfOneToken) {
  const Tokens tokens = random_tokens(2, 9);
  auto [out, state] = fmm_attention_prefill(tokens.until(8), {}, kDecoding);
  AttentionInputs token = tokens.at(8);
  token.token_mask = torch::ones({3}, torch::kBool);
  EXPECT_THAT([&] { fmm_attention_step(token, state, {}, kDecoding); },
              ThrowsMessage<c10::ValueError>(HasSubstr("token_mask has shape [3]; allowed is "
                                                       "[batch] = [2]")));
  token = tokens.at(8);
  token.k = torch::ones({2, 2, 6}, at::kDouble);
  EXPECT_THAT([&] { fmm_attention_step(token, state, {}, kDecoding); },
              ThrowsMessage<c10::ValueError>(HasSubstr("k has shape [2, 2, 6]")));
}

TEST(FmmDecode, AStateIsNotSavedIntoAFolderThatDoesNotExist) {
  const TemporaryFolder folder;
  auto [out, state] = fmm_attention_prefill(random_tokens(1, 8).until(8), {}, kDecoding);
  EXPECT_THAT([&] { state.save((folder.path() / "none" / "state").string()); },
              ThrowsMessage<c10::ValueError>(HasSubstr("create it first")));
}

TEST(FmmDecode, AStateWithANegativePositionIsRefused) {
  const Tokens tokens = random_tokens(1, 9);
  auto [out, state] = fmm_attention_prefill(tokens.until(8), {}, kDecoding);
  state.position.fill_(-1);
  EXPECT_THAT([&] { fmm_attention_step(tokens.at(8), state, {}, kDecoding); },
              ThrowsMessage<c10::ValueError>(HasSubstr("position is -1")));
}

TEST(FmmDecode, TwoSidedAttentionAndAMissingLengthAreRefused) {
  const Tokens tokens = random_tokens(1, 9);
  auto [out, state] = fmm_attention_prefill(tokens.until(8), {}, kDecoding);
  FmmOptions options = kDecoding;
  options.causal = false;
  EXPECT_THAT([&] { fmm_attention_prefill(tokens.until(8), {}, options); },
              ThrowsMessage<c10::ValueError>(HasSubstr("causal is false")));
  options = kDecoding;
  options.normaliser = Normaliser::kInvSqrtLength;
  EXPECT_THAT([&] { fmm_attention_step(tokens.at(8), state, {}, options); },
              ThrowsMessage<c10::ValueError>(HasSubstr("inv_sqrt_length")));
}

}  // namespace
}  // namespace fmmformer
