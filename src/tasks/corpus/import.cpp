// SPDX-License-Identifier: Apache-2.0
#include "tasks/corpus/import.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "tasks/corpus/token_file.h"
#include "tasks/corpus/words.h"
#include "tasks/data/byte_source.h"
#include "tasks/data/columns.h"
#include "tasks/data/folder.h"
#include "tasks/data/source_names.h"

namespace fmmformer::tasks {
namespace {

namespace fs = std::filesystem;

constexpr size_t kValidShare = 10;  // of a train text without a valid one beside it

/// Numbers words in the order in which they are first seen; <eos> is 0.
class WordNumbers {
 public:
  WordNumbers() { number_of(kEndOfLine); }

  uint32_t number_of(std::string_view word) {
    if (const auto found = numbers_.find(word); found != numbers_.end()) return found->second;
    const auto number = static_cast<uint32_t>(words_.size());
    words_.push_back(&numbers_.emplace(word, number).first->first);
    return number;
  }
  const std::string& word(uint32_t number) const { return *words_[number]; }
  size_t size() const { return words_.size(); }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view word) const { return std::hash<std::string_view>()(word); }
  };
  std::unordered_map<std::string, uint32_t, Hash, std::equal_to<>> numbers_;
  std::vector<const std::string*> words_;
};

using Numbers = std::vector<uint32_t>;

/// A text in tokens, packed, with the words in it that were not in the vocabulary.
struct EncodedSplit {
  std::string packed;
  int64_t unknown = 0;
};

struct EncodedCorpus {
  Vocabulary vocabulary;
  std::map<Split, EncodedSplit> texts;
};

// ---- reading ------------------------------------------------------------------------------------

void add_words(const fs::path& file, WordNumbers& words, Numbers& text) {
  LineReader lines(file);
  while (const auto line = lines.next()) {
    if (const size_t at = first_byte_not_utf8(*line); at < line->size()) {
      lines.fail("byte " + std::to_string(at + 1) +
                 " of the line is not UTF-8; convert the file, such as with `iconv -f latin1 -t "
                 "utf-8`, or read it as bytes with --level byte");
    }
    std::string_view rest = *line;
    for (auto word = next_word(rest); !word.empty(); word = next_word(rest)) {
      text.push_back(words.number_of(word));
    }
    text.push_back(kEndOfLineToken);
  }
}

[[noreturn]] void nothing_in(Split split, const std::vector<fs::path>& files) {
  throw DataError("the " + std::string(enum_name(split)) + " text '" + files.front().string() +
                  "' is empty; give one with text");
}

/// Where the last tenth of a text begins: after the last end of a line that leaves at least a tenth
/// behind it, or just there in a text of one line.
template <typename Text>
size_t begin_of_valid(const Text& text, typename Text::value_type end_of_line) {
  const size_t share = text.size() - text.size() / kValidShare;
  const auto reversed_begin =
      std::make_reverse_iterator(text.begin() + static_cast<ptrdiff_t>(share));
  const auto found = std::find(reversed_begin, text.rend(), end_of_line);
  const auto after_line = static_cast<size_t>(found.base() - text.begin());
  return after_line > 0 ? after_line : share;
}

/// Gives each split of the sources its text, the valid split a part of train's if it has none.
template <typename Text, typename Read>
std::map<Split, Text> read_texts(ImportSources sources, typename Text::value_type end_of_line,
                                 const Read& read) {
  std::map<Split, Text> texts;
  for (const Split split : kSplits) {
    if (sources.of(split).empty()) continue;
    Text& text = texts[split];
    for (const fs::path& file : sources.of(split)) read(file, text);
    if (text.empty()) nothing_in(split, sources.of(split));
  }
  if (sources.train.empty() || !sources.valid.empty()) return texts;
  Text& train = texts[Split::kTrain];
  const auto begin = static_cast<ptrdiff_t>(begin_of_valid(train, end_of_line));
  if (begin == std::ssize(train)) {
    throw DataError("the train text '" + sources.train.front().string() +
                    "' is too short to lend its last tenth to the valid split; give a longer one, "
                    "or a valid text");
  }
  texts[Split::kValid] = Text(train.begin() + begin, train.end());
  train.resize(static_cast<size_t>(begin));
  return texts;
}

// ---- words --------------------------------------------------------------------------------------

/// The vocabulary of a train text. Adds <unk> to the words when rare ones are to be read as it.
Vocabulary vocabulary_of(const Numbers& train, int64_t min_count, WordNumbers& words) {
  std::vector<int64_t> counts(words.size());
  for (const uint32_t number : train) ++counts[number];
  counts[kEndOfLineToken] = 0;  // has its place
  const auto is_rare = [&](uint32_t number) { return counts[number] < min_count; };
  int64_t rare = 0;
  for (uint32_t number = 0; number < counts.size(); ++number) {
    if (is_rare(number)) rare += std::exchange(counts[number], 0);
  }
  if (rare > 0) {
    const uint32_t unknown = words.number_of(kUnknownWord);
    counts.resize(words.size());
    counts[unknown] += rare;
  }
  Numbers order;
  for (uint32_t number = 0; number < counts.size(); ++number) {
    if (counts[number] > 0) order.push_back(number);
  }
  std::ranges::stable_sort(order, std::ranges::greater(), [&](uint32_t n) { return counts[n]; });
  std::vector<std::string> by_count = {std::string(kEndOfLine)};
  for (const uint32_t number : order) by_count.push_back(words.word(number));
  return Vocabulary::of_words(std::move(by_count));
}

/// The tokens of a text, whose words are numbered as they were seen.
class Encoder {
 public:
  Encoder(const WordNumbers& words, const Vocabulary& vocabulary)
      : words_(words), vocabulary_(vocabulary), unknown_(vocabulary.find(kUnknownWord)) {
    for (uint32_t number = 0; number < words.size(); ++number) {
      const auto token = vocabulary.find(words.word(number));
      tokens_.push_back(token ? static_cast<uint32_t>(*token) : kNone);
    }
  }

  EncodedSplit encode(Split split, Numbers text) const {
    int64_t unknown = 0;
    std::optional<uint32_t> first;
    for (uint32_t& number : text) {
      const uint32_t token = tokens_[number];
      if (token == kNone) {
        ++unknown;
        if (!first) first = number;
      }
      number = token != kNone ? token : static_cast<uint32_t>(unknown_.value_or(0));
    }
    if (first && !unknown_) {
      throw DataError("the " + std::string(enum_name(split)) + " text has " +
                      std::to_string(unknown) + " words that the vocabulary has not, '" +
                      readable_word(words_.word(*first)) +
                      "' the first of them, and there is no <unk> to read them as; read the rare "
                      "words of the train text as <unk> with --min-count 2, or all as bytes with "
                      "--level byte");
    }
    return {.packed = packed_tokens(text, vocabulary_), .unknown = unknown};
  }

 private:
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  const WordNumbers& words_;
  const Vocabulary& vocabulary_;
  std::optional<int64_t> unknown_;
  Numbers tokens_;  // by number
};

EncodedCorpus encode_words(const ImportSources& sources, int64_t min_count,
                           std::optional<Vocabulary> known) {
  WordNumbers words;
  auto texts = read_texts<Numbers>(
      sources, kEndOfLineToken,
      [&](const fs::path& file, Numbers& text) { add_words(file, words, text); });
  if (!known) known = vocabulary_of(texts.at(Split::kTrain), min_count, words);
  if (known->size() < 2) nothing_in(Split::kTrain, sources.train);
  EncodedCorpus corpus{.vocabulary = std::move(*known), .texts = {}};
  const Encoder encoder(words, corpus.vocabulary);
  for (auto& [split, text] : texts) corpus.texts[split] = encoder.encode(split, std::move(text));
  return corpus;
}

// ---- bytes --------------------------------------------------------------------------------------

EncodedCorpus encode_bytes(const ImportSources& sources) {
  EncodedCorpus corpus{.vocabulary = Vocabulary::of_bytes(), .texts = {}};
  auto texts = read_texts<std::string>(
      sources, '\n', [](const fs::path& file, std::string& text) { text += read_whole(file); });
  for (auto& [split, text] : texts) corpus.texts[split].packed = std::move(text);
  return corpus;
}

/// What the folder's texts were read with, where there is no train text to make it anew.
Vocabulary vocabulary_there(const CorpusOptions& options, const fs::path& folder) {
  std::error_code ignored;
  if (!fs::exists(vocabulary_path(folder), ignored)) {
    throw DataError("there is no train text, whose words are the vocabulary, and no '" +
                    vocabulary_path(folder).string() +
                    "' of an earlier one; give the train text too, or name the folder that it was "
                    "imported to with --out");
  }
  Vocabulary vocabulary = Vocabulary::read(folder);
  if (options.level.value_or(vocabulary.level()) != vocabulary.level() || options.min_count > 1) {
    throw DataError("'" + vocabulary_path(folder).string() + "' is of the level " +
                    std::string(enum_name(vocabulary.level())) +
                    " and stays as it is without a train text; leave out --level and --min-count, "
                    "or give the train text too");
  }
  return vocabulary;
}

}  // namespace

ImportSources find_texts(const fs::path& folder) {
  ImportSources sources;
  for (const fs::path& file : files_in(folder, "")) {
    const std::string name = name_without_packing(file);
    const bool text = name.ends_with(".tokens") || name.ends_with(".txt") || name.ends_with(".raw");
    const auto split = split_in_name(name);
    if (text && split) sources.of(*split).push_back(file);
  }
  for (const Split split : kSplits) refuse_twins(sources.of(split));
  if (sources.train.empty() && sources.valid.empty() && sources.test.empty()) {
    throw DataError("'" + folder.string() +
                    "' has no texts; wanted are files such as wiki.train.tokens or my_valid.txt, "
                    "with train, valid or test in their names; or name them with --train, --valid "
                    "and --test");
  }
  return sources;
}

ImportedCorpus import_corpus(const ImportSources& sources, const CorpusOptions& options,
                             const fs::path& folder) {
  std::optional<Vocabulary> known;
  if (sources.train.empty()) known = vocabulary_there(options, folder);
  const TextLevel level = known ? known->level() : options.level.value_or(TextLevel::kWord);
  if (level == TextLevel::kByte && options.min_count > 1) {
    throw DataError("--min-count is for words; leave it out with --level byte");
  }
  const bool keeps_vocabulary = known.has_value();
  const EncodedCorpus corpus = level == TextLevel::kByte
                                   ? encode_bytes(sources)
                                   : encode_words(sources, options.min_count, std::move(known));
  if (!keeps_vocabulary) corpus.vocabulary.write(folder);
  ImportedCorpus imported{.level = level, .vocabulary = corpus.vocabulary.size(), .texts = {}};
  for (const auto& [split, text] : corpus.texts) {
    write_token_file(folder, split, corpus.vocabulary, text.packed);
    imported.texts.push_back(
        {split, TokenFile(folder, split, corpus.vocabulary).tokens(), text.unknown});
  }
  return imported;
}

}  // namespace fmmformer::tasks
