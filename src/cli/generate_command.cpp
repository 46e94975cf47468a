// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/models/generation.h"

#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/device_options.h"
#include "cli/field_options.h"
#include "cli/prompt.h"
#include "cli/run_options.h"
#include "fmmformer/core/allocator.h"
#include "fmmformer/core/config.h"
#include "train/file_system.h"
#include "train/interrupt.h"
#include "train/record_edit.h"

namespace fmmformer::cli {
namespace {

using Json = nlohmann::ordered_json;

struct GenerateOptions {
  RunOptions run;
  std::optional<std::string> prompt;
  std::string prompt_file, data;
  bool allow_unknown = false;
  GenerationOptions generation;
  int64_t samples = 1;
  bool json = false, save = false;
  DeviceOptions device;
};

void add_options(CLI::App& app, GenerateOptions& options) {
  add_run_options(app, options.run);
  CLI::Option* prompt =
      app.add_option("--prompt", options.prompt,
                     "what to go on with: words as the training text has them, or bytes, as the "
                     "model was trained; a line end in it ends a line (default: a new line)")
          ->type_name("TEXT");
  app.add_option("--prompt-file", options.prompt_file, "the same from a file")
      ->type_name("FILE")
      ->check(CLI::ExistingFile)
      ->excludes(prompt);
  require_at_least(
      app.add_option("--tokens", options.generation.tokens, "how many to add (default: 100)")
          ->type_name("N"),
      1);
  require_at_least(
      app.add_option("--samples", options.samples, "how many texts (default: 1)")->type_name("N"),
      1);
  require_at_least(
      app.add_option("--seed", options.generation.seed,
                     "all draws follow from it: the same seed, the same text (default: 1)")
          ->type_name("N"),
      0);
  add_field_options(app, options.generation.sampling);
  app.add_flag("--allow-unknown", options.allow_unknown,
               "words of the prompt that the vocabulary does not have are read as <unk>");
  app.add_option("--data", options.data,
                 "folder with the vocabulary (default: where the run had its data)")
      ->type_name("FOLDER");
  app.add_flag("--json", options.json, "one JSON object a sample instead of text");
  app.add_flag("--save", options.save,
               "keep the samples in the run's record.json, in place of those before: `report` "
               "shows them");
  add_device_options(app, options.device);
  app.footer(
      "RUN may also be a folder that `reproduce --keep` made, with a language model's "
      "model.safetensors and config.toml. (Of\nresults/, lra holds classifiers, and wikitext2 "
      "records without models.)\n\n"
      "Examples:\n"
      "  fmmformer generate runs/wikitext2/fmm2_band20 --prompt 'The game was' --top-k 40\n"
      "  fmmformer generate --run runs/book --tokens 1000 --temperature 0.8 --samples 3 --save");
}

std::shared_ptr<const LanguageModel> language_model_of(const train::TrainedModel& trained,
                                                       const std::string& folder) {
  auto model = std::dynamic_pointer_cast<LanguageModel>(trained.model);
  if (!model) {
    throw UsageError("'" + folder + "' holds a " +
                     std::string(enum_name(trained.experiment.model.kind)) +
                     ", which says nothing about a next token; generate needs a language_model "
                     "(`fmmformer predict` applies classifiers)");
  }
  return model;
}

struct Sample {
  int64_t number = 0;
  std::vector<int64_t> tokens;
  std::string text;
  double seconds = 0;

  double tokens_per_second() const { return static_cast<double>(tokens.size()) / seconds; }
};

/// Text as it comes, unless it is to be JSON.
Sample sample(const std::shared_ptr<const LanguageModel>& model, std::span<const int64_t> prompt,
              const PromptLanguage& language, const GenerateOptions& options, int64_t number,
              const train::InterruptGuard& interrupt) {
  GenerationOptions generation = options.generation;
  generation.sample = number;
  Sample result{.number = number};
  const auto writer = language.writer();
  const auto show = [&](const std::string& text) {
    if (options.json) return;
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  };
  for (const int64_t token : prompt) show(writer(token));
  const auto begin = std::chrono::steady_clock::now();
  result.tokens = generate(model, prompt, generation, [&](int64_t token) {
    const std::string added = writer(token);
    result.text += added;
    show(added);
    return !interrupt.requested();
  });
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  show("\n");
  return result;
}

Json json_of(const Sample& sample, const GenerateOptions& options, const std::string& prompt,
             int64_t step) {
  Json json = {{"prompt", prompt},
               {"text", sample.text},
               {"tokens", sample.tokens.size()},
               {"seed", options.generation.seed},
               {"sample", sample.number + 1},  // as the text counts them
               {"step", step}};
  json["sampling"] = Json::parse(to_json(config_value(options.generation.sampling)));
  return json;
}

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);  // bytes may be no UTF-8
}

std::string text_of(std::span<const int64_t> tokens, const PromptLanguage& language) {
  std::string text;
  const auto writer = language.writer();
  for (const int64_t token : tokens) text += writer(token);
  return text;
}

}  // namespace

int run_generate(const CommandLine& line) {
  GenerateOptions options;
  CLI::App app("Goes on with a text, token by token, in constant time and memory a token.");
  add_options(app, options);
  if (!read_options(app, line)) return kDone;

  const std::string folder = run_folder_of(options.run, "runs/wikitext2/fmm2_band20");
  if (!options.prompt_file.empty()) options.prompt = train::read_text(options.prompt_file);
  keep_freed_memory();
  const c10::Device device = use_device(options.device);
  const train::TrainedModel trained = in_full_precision(load_trained(folder, options.run, device));
  const auto model = language_model_of(trained, folder);
  if (options.save) train::check_has_record(folder);
  const PromptLanguage language(train::RunPaths(folder), trained.experiment, options.data);
  const auto prompt = language.tokens(options.prompt, options.allow_unknown);
  const std::string prompt_text = text_of(prompt, language);

  Json kept = Json::array();
  const train::InterruptGuard interrupt;  // Ctrl-C ends the text, and what there is is kept
  for (int64_t number = 0; number < options.samples && !interrupt.requested(); ++number) {
    if (options.samples > 1 && !options.json) {
      std::printf("%s--- sample %ld ---\n", number == 0 ? "" : "\n", number + 1);
    }
    const Sample one = sample(model, prompt, language, options, number, interrupt);
    kept.push_back(json_of(one, options, prompt_text, trained.step));
    if (options.json) {
      Json shown = kept.back();
      shown["token_ids"] = one.tokens;
      shown["tokens_per_second"] = one.tokens_per_second();
      std::printf("%s\n", dumped(shown).c_str());
    } else {
      std::fprintf(stderr, "%zu tokens, %.0f tokens/s\n", one.tokens.size(),
                   one.tokens_per_second());
    }
  }
  if (options.save) {
    // Through text, where bytes that are no UTF-8 have been replaced.
    train::edit_record(folder,
                       [&](Json& record) { record["samples"] = Json::parse(dumped(kept)); });
  }
  return interrupt.requested() ? kStoppedBySignal + interrupt.signal() : kDone;
}

}  // namespace fmmformer::cli
