// SPDX-License-Identifier: Apache-2.0
// From a person's text to tokens and back, as the import has it: words between white space, an end
// of line its own token; or the bytes as they are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tasks/corpus/vocabulary.h"

namespace fmmformer::tasks {

struct EncodedText {
  std::vector<int64_t> tokens;       // unknown words as <unk>, where the vocabulary has it
  std::vector<std::string> unknown;  // words that it does not have, each once
};

/// The tokens of a text that may go on: unlike in an import, its last line has no end unless it is
/// written.
EncodedText encoded(std::string_view text, const Vocabulary& vocabulary);

/// Puts tokens together to a text, one by one, as they come: words with a space between them.
class TextWriter {
 public:
  explicit TextWriter(const Vocabulary& vocabulary) : vocabulary_(&vocabulary) {}

  /// What the token adds. Bytes that a terminal would obey are spelled out.
  std::string add(int64_t token);

 private:
  const Vocabulary* vocabulary_;
  bool at_begin_of_line_ = true;
};

}  // namespace fmmformer::tasks
