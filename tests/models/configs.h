// SPDX-License-Identifier: Apache-2.0
// The models of the paper, and small ones.
#pragma once

#include <string_view>

#include "fmmformer/core/config.h"
#include "fmmformer/models/model_config.h"

namespace fmmformer::testing {

inline ModelConfig model_config(std::string_view toml) {
  ModelConfig config;
  read_config(parse_toml(toml, "test"), config);
  return config;
}

inline AttentionConfig copy_attention(int64_t bandwidth, std::vector<FeatureMap> maps) {
  return {.causal = true,
          .bandwidth = bandwidth,
          .feature_maps = std::move(maps),
          .unit_features = true,
          .dropout = 0.1,
          .blend = {.rule = BlendPreset::kCopy}};
}

inline AttentionConfig causal_softmax() {
  return {.kind = AttentionKind::kSoftmax, .causal = true};
}

/// The defaults of ModelConfig are the copy task's.
inline ModelConfig copy_model(AttentionConfig attention) {
  return {.attention = std::move(attention)};
}

struct LraTask {
  ModelKind kind;
  int64_t vocabulary, max_length, classes;
};
inline constexpr LraTask kListops{ModelKind::kSequenceClassifier, 32, 2048, 10},
    kText{ModelKind::kSequenceClassifier, 512, 4096, 2},
    kRetrieval{ModelKind::kPairClassifier, 512, 4096, 2},
    kImage{ModelKind::kSequenceClassifier, 512, 1024, 10},
    kPathfinder{ModelKind::kSequenceClassifier, 512, 1024, 2};

inline AttentionConfig lra_attention(int64_t bandwidth, std::vector<FeatureMap> maps,
                                     BlendPreset rule) {
  return {.bandwidth = bandwidth,
          .feature_maps = std::move(maps),
          .normaliser = Normaliser::kInvSqrtLength,
          .dropout = 0.1,
          .blend = {.rule = rule}};
}

inline ModelConfig lra_model(const LraTask& task, AttentionConfig attention) {
  return {.kind = task.kind,
          .vocabulary = task.vocabulary,
          .max_length = task.max_length,
          .dim = 64,
          .layers = 2,
          .heads = 2,
          .ffn_dim = 128,
          .norm = NormPlacement::kPre,
          .activation = Activation::kGelu,
          .embedding_dropout = 0.1,
          .positions = Positions::kLearned,
          .classes = task.classes,
          .initialisation = Initialisation::kNormalEmbeddings,
          .attention = std::move(attention)};
}

/// Of the paper's second table of language models.
inline AttentionConfig fast_weight_attention_config(int64_t bandwidth,
                                                    std::vector<FeatureMap> maps) {
  return {.causal = true,
          .bandwidth = bandwidth,
          .feature_maps = std::move(maps),
          .fast_weights = true,
          .unit_features = true,
          .eps = 1e-5,
          .far_scale = 0.25,
          .projections = Projections::kFused,
          .blend = {.rule = BlendPreset::kFastWeights}};
}

inline ModelConfig wikitext_model(AttentionConfig attention) {
  attention.causal = true;
  attention.bias = false;
  return {.vocabulary = 267735,
          .max_length = 256,
          .dim = 128,
          .layers = 16,
          .heads = 8,
          .ffn_dim = 2048,
          .final_norm = false,
          .embedding_dropout = 0.1,
          .final_dropout = 0.1,
          .positions = Positions::kSinusoidDescending,
          .scale_embedding = true,
          .output = Output::kAdaptiveSoftmax,
          .cutoffs = {20000, 40000, 200000},
          .initialisation = Initialisation::kNormal,
          .attention = std::move(attention)};
}

/// The same model in a size for tests.
inline ModelConfig made_small(ModelConfig config) {
  config.dim = 32, config.layers = 2, config.heads = 4, config.ffn_dim = 48, config.max_length = 40;
  return config;
}
inline ModelConfig small_copy(AttentionConfig attention) {
  return made_small(copy_model(std::move(attention)));
}

}  // namespace fmmformer::testing
