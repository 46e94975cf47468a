// SPDX-License-Identifier: Apache-2.0
// What a config says about a model; without torch.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "fmmformer/core/fields.h"
#include "fmmformer/nn/config.h"

namespace fmmformer {

enum class ModelKind { kLanguageModel, kSequenceClassifier, kPairClassifier };
enum class Positions {
  kNone,
  kLearned,               // a table, added
  kSinusoidConcatenated,  // half of the width is token, half sin/cos code, interleaved
  kSinusoidAdded,         // [sin | cos] halves, added
  kSinusoidDescending,    // the same, the last token having position 0
};
enum class Pooling {
  kPaddedLength,  // sum over real tokens / length with padding: what the authors' LRA code does
  kRealTokens,    // mean over real tokens
};
enum class Output {
  kLinear,
  kAdaptiveSoftmax,  // in clusters, tied to the embedding
};

template <>
struct EnumTable<ModelKind> {
  static constexpr std::string_view kKind = "model";
  static std::span<const EnumName<ModelKind>> entries();
};
template <>
struct EnumTable<Positions> {
  static constexpr std::string_view kKind = "kind of positions";
  static std::span<const EnumName<Positions>> entries();
};
template <>
struct EnumTable<Pooling> {
  static constexpr std::string_view kKind = "pooling";
  static std::span<const EnumName<Pooling>> entries();
};
template <>
struct EnumTable<Output> {
  static constexpr std::string_view kKind = "output";
  static std::span<const EnumName<Output>> entries();
};

/// The defaults are the copy task's model.
struct ModelConfig {
  ModelKind kind = ModelKind::kLanguageModel;
  int64_t vocabulary = 11;
  int64_t max_length = 512;
  int64_t dim = 256;
  int64_t layers = 4;
  int64_t heads = 8;
  int64_t head_dim = 0;
  int64_t ffn_dim = 1024;
  NormPlacement norm = NormPlacement::kPost;
  bool final_norm = true;
  Activation activation = Activation::kRelu;
  double dropout = 0.1;
  double embedding_dropout = 0.0;
  double final_dropout = 0.0;
  Positions positions = Positions::kSinusoidConcatenated;
  bool scale_embedding = false;
  Output output = Output::kLinear;
  std::vector<int64_t> cutoffs;
  int64_t classes = 2;
  int64_t head_hidden = 128;
  Pooling pooling = Pooling::kPaddedLength;
  Initialisation initialisation = Initialisation::kTorch;
  double initial_std = 0.02;
  AttentionConfig attention;

  static void fields(auto& self, auto&& visit) {
    visit("kind", self.kind, "what the model predicts: tokens, a class, or a class of two texts");
    visit("vocabulary", self.vocabulary, Range{.low = 1}, "rows of the embedding");
    visit("max_length", self.max_length, Range{.low = 1}, "longest sequence; rows of positions");
    visit("dim", self.dim, Range{.low = 1}, "width of the model");
    visit("layers", self.layers, Range{.low = 0}, "transformer blocks");
    visit("heads", self.heads, Range{.low = 1}, "attention heads");
    visit("head_dim", self.head_dim, Range{0, kMaxHeadDim}, "width of a head; 0: dim / heads");
    visit("ffn_dim", self.ffn_dim, Range{.low = 1}, "width inside the feed-forward network");
    visit("norm", self.norm, "pre: before attention and ffn; post: after adding them");
    visit("final_norm", self.final_norm, "one more norm after the last block");
    visit("activation", self.activation, "inside the feed-forward network");
    visit("dropout", self.dropout, Range{0, 0.999}, "after attention, activation and ffn");
    visit("embedding_dropout", self.embedding_dropout, Range{0, 0.999},
          "after embedding and position");
    visit("final_dropout", self.final_dropout, Range{0, 0.999}, "after the last block");
    visit("positions", self.positions, "how a token's place is told");
    visit("scale_embedding", self.scale_embedding, "multiply embeddings by sqrt(their width)");
    visit("output", self.output, "of a language model");
    visit("cutoffs", self.cutoffs, Range{.low = 1}, "of the adaptive softmax");
    visit("classes", self.classes, Range{.low = 1}, "of a classifier");
    visit("head_hidden", self.head_hidden, Range{.low = 1}, "width inside a classifier's head");
    visit("pooling", self.pooling, "how a classifier averages over tokens");
    visit("initialisation", self.initialisation, "how parameters start");
    visit("initial_std", self.initial_std, Range{.low = 0}, "of the normal initialisations");
    visit("attention", self.attention, "of every block");
  }

  /// head_dim, or what 0 means. Throws std::invalid_argument when dim does not divide.
  int64_t width_of_head() const;
};

}  // namespace fmmformer
