// SPDX-License-Identifier: Apache-2.0
#include "cli/prompt.h"

#include <charconv>
#include <filesystem>
#include <sstream>

#include "cli/command.h"
#include "tasks/corpus/text_codec.h"
#include "tasks/corpus/words.h"
#include "tasks/wikitext.h"
#include "train/run_vocabulary.h"

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
                   (has_stand_in ? ", or add --allow-unknown to have them read as <unk>"
                    : allowed    ? "; it has no <unk> that they could be read as either: texts "
                                   "imported with --min-count 2 or more have it"
                                 : ""));
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

void check_words(const train::RunPaths& run, const train::ExperimentConfig& experiment,
                 const std::string& option) {
  const auto file = tasks::vocabulary_path(experiment.task.wikitext.data);
  const std::string way_out =
      "name the folder with the vocabulary that it was trained on (--data FOLDER)";
  if (!std::filesystem::exists(file)) {
    throw UsageError(option + "there is no '" + file.string() + "', and the run '" +
                     run.folder().string() + "' needs its vocabulary; " + way_out +
                     ", or import the text again (fmmformer data import wikitext)");
  }
  try {
    train::check_vocabulary(run, experiment, way_out);
  } catch (const std::invalid_argument& error) {
    throw UsageError(option + error.what());
  }
}

}  // namespace

PromptLanguage::PromptLanguage(const train::RunPaths& run, train::ExperimentConfig experiment,
                               const std::string& data) {
  const bool is_text = experiment.task.name == tasks::TaskName::kWikitext;
  if (!data.empty() && !is_text)
    throw UsageError("--data names the folder of a vocabulary, but this run's task has none");
  if (is_text) {
    tasks::WikitextConfig& text = experiment.task.wikitext;
    if (!data.empty()) text.data = data;
    text.vocabulary = 0;  // compared here, with a way out that this command has
    check_words(run, experiment, data.empty() ? "" : "--data '" + data + "': ");
  }
  task_ = tasks::make_task(experiment.task, 0);
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
