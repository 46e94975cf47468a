// SPDX-License-Identifier: Apache-2.0
#include "cli/prompt.h"

#include <charconv>
#include <sstream>

#include "cli/command.h"
#include "tasks/corpus/text_codec.h"
#include "tasks/corpus/words.h"
#include "tasks/wikitext.h"

namespace fmmformer::cli {
namespace {

constexpr size_t kWordsNamed = 5;  // of the unknown ones, in an error

const tasks::WikitextTask* as_text(const tasks::Task& task) {
  return dynamic_cast<const tasks::WikitextTask*>(&task);
}

std::string quoted(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size() && i < kWordsNamed; ++i) {
    text += (i == 0 ? "'" : ", '") + tasks::readable_word(words[i]) + "'";
  }
  const size_t rest = words.size() - std::min(words.size(), kWordsNamed);
  return rest == 0 ? text : text + " and " + std::to_string(rest) + " more";
}

void check_unknown(const std::vector<std::string>& unknown, const tasks::Vocabulary& vocabulary,
                   bool allowed) {
  const bool has_stand_in = vocabulary.find(tasks::kUnknownWord).has_value();
  if (unknown.empty() || (allowed && has_stand_in)) return;
  throw UsageError("the model's vocabulary does not have " + quoted(unknown) +
                   "; write words as its training text has them, marks apart (\"in 1999 , the\")" +
                   (has_stand_in ? ", or add --allow-unknown to have them read as <unk>" : ""));
}

std::vector<int64_t> numbers_of(const std::string& prompt, int64_t vocabulary) {
  std::vector<int64_t> tokens;
  std::istringstream stream(prompt);
  for (std::string word; stream >> word;) {
    int64_t token = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), token);
    if (error != std::errc() || end != word.data() + word.size() || token < 0 ||
        token >= vocabulary) {
      throw UsageError("--prompt: '" + word + "' is no token; this model's are the numbers 0.." +
                       std::to_string(vocabulary - 1));
    }
    tokens.push_back(token);
  }
  return tokens;
}

}  // namespace

PromptLanguage::PromptLanguage(const train::ExperimentConfig& experiment,
                               const std::string& folder) {
  tasks::TaskConfig config = experiment.task;
  if (!folder.empty()) {
    if (config.name != tasks::TaskName::kWikitext)
      throw UsageError("--data names the folder of a vocabulary, but this run's task has none");
    config.wikitext.data = folder;
  }
  task_ = tasks::make_task(config, 0);
  const int64_t has = task_->vocabulary(), wanted = experiment.model.vocabulary;
  const auto* text = as_text(*task_);
  if (text == nullptr || text->words().size() == wanted) return;
  throw std::invalid_argument(
      "the vocabulary in '" + config.wikitext.data + "' has " + std::to_string(has) +
      " tokens, the model " + std::to_string(wanted) +
      "; name the folder with the vocabulary that it was trained on (--data)");
}

std::vector<int64_t> PromptLanguage::tokens(const std::optional<std::string>& prompt,
                                            bool unknown_allowed) const {
  const auto* text = as_text(*task_);
  const std::string way_out = text ? "; leave --prompt out to begin with a new line"
                                   : "; give tokens, such as --prompt '3 1 4 0'";
  if (!prompt && text == nullptr)
    throw UsageError("this model's tokens are numbers, and there is no prompt" + way_out);
  std::vector<int64_t> tokens;
  if (text == nullptr) {
    tokens = numbers_of(*prompt, task_->vocabulary());
  } else {
    const tasks::Vocabulary& words = text->words();
    const auto encoded = tasks::encoded(prompt.value_or("\n"), words);
    check_unknown(encoded.unknown, words, unknown_allowed);
    tokens = encoded.tokens;
  }
  if (tokens.empty()) throw UsageError("the prompt is empty" + way_out);
  return tokens;
}

std::function<std::string(int64_t)> PromptLanguage::writer() const {
  if (const auto* text = as_text(*task_)) {
    return [writer = tasks::TextWriter(text->words())](int64_t token) mutable {
      return writer.add(token);
    };
  }
  return [first = true](int64_t token) mutable {
    std::string text = std::exchange(first, false) ? "" : " ";
    return text.append(std::to_string(token));
  };
}

}  // namespace fmmformer::cli
