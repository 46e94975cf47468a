// SPDX-License-Identifier: Apache-2.0
// From texts to the files of tokens that language models read.
//
// Words: a line is cut at white space, case and marks kept, and ends with the token <eos>, blank
// lines too. The vocabulary is that of the train text: <eos> is token 0, then come the words by
// falling count, equally frequent ones in the order in which they were first seen. <unk> is a word
// like any other; WikiText has it for its rare ones.
//
// Bytes: a token is a byte of the file, as it stands there; all texts have the same vocabulary.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "tasks/corpus/vocabulary.h"
#include "tasks/data/import.h"

namespace fmmformer::tasks {

struct CorpusOptions {
  std::optional<TextLevel> level;  // none: as the folder has it if there is no train text, or words
  int64_t min_count = 1;           // words that the train text has less often are read as <unk>
};

struct ImportedText {
  Split split = Split::kTrain;
  int64_t tokens = 0;
  int64_t unknown = 0;  // words of the text that were read as <unk>
};

struct ImportedCorpus {
  TextLevel level = TextLevel::kWord;
  int64_t vocabulary = 0;
  std::vector<ImportedText> texts;
};

/// The texts in a folder: .tokens, .txt or .raw (and these packed), with the split in their names:
/// wiki.train.tokens, my_valid.txt.xz. Throws DataError when there is none, or the same twice.
ImportSources find_texts(const std::filesystem::path& folder);

/// Reads all texts, then writes FOLDER/vocabulary.txt and FOLDER/SPLIT.fmmtokens: a mistake in any
/// of them leaves the folder as it was. The files of a split are read one after another as one
/// text. Where no source for the valid split is given, the last tenth of the train text, cut at the
/// end of a line, is it. Without a train text, the others are read with the vocabulary that the
/// folder has already.
///
/// A word of valid or test that is not in the vocabulary is read as <unk>; where the vocabulary has
/// none, it is an error. Throws DataError for wrong input, std::runtime_error when a file cannot be
/// written.
ImportedCorpus import_corpus(const ImportSources& sources, const CorpusOptions& options,
                             const std::filesystem::path& folder);

}  // namespace fmmformer::tasks
