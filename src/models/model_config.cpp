// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/models/model_config.h"

#include <stdexcept>
#include <string>

namespace fmmformer {

std::span<const EnumName<ModelKind>> EnumTable<ModelKind>::entries() {
  static constexpr EnumName<ModelKind> kEntries[] = {
      {ModelKind::kLanguageModel, "language_model"},
      {ModelKind::kSequenceClassifier, "sequence_classifier"},
      {ModelKind::kPairClassifier, "pair_classifier"}};
  return kEntries;
}

std::span<const EnumName<Positions>> EnumTable<Positions>::entries() {
  static constexpr EnumName<Positions> kEntries[] = {
      {Positions::kNone, "none"},
      {Positions::kLearned, "learned"},
      {Positions::kSinusoidConcatenated, "sinusoid_concatenated"},
      {Positions::kSinusoidAdded, "sinusoid_added"},
      {Positions::kSinusoidDescending, "sinusoid_descending"}};
  return kEntries;
}

std::span<const EnumName<Pooling>> EnumTable<Pooling>::entries() {
  static constexpr EnumName<Pooling> kEntries[] = {{Pooling::kPaddedLength, "padded_length"},
                                                   {Pooling::kRealTokens, "real_tokens"}};
  return kEntries;
}

std::span<const EnumName<Output>> EnumTable<Output>::entries() {
  static constexpr EnumName<Output> kEntries[] = {{Output::kLinear, "linear"},
                                                  {Output::kAdaptiveSoftmax, "adaptive_softmax"}};
  return kEntries;
}

int64_t ModelConfig::width_of_head() const {
  if (head_dim > 0) return head_dim;
  if (dim % heads != 0) {
    throw std::invalid_argument("model: dim is " + std::to_string(dim) + " and heads is " +
                                std::to_string(heads) +
                                "; dim must be a multiple of heads, or head_dim be given");
  }
  return dim / heads;
}

}  // namespace fmmformer
