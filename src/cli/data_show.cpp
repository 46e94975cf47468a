// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>

#include "cli/data_commands.h"
#include "cli/data_corpus.h"
#include "tasks/data/grey_image.h"

namespace fmmformer::cli {
namespace {

constexpr int64_t kScale = 8;  // of drawn pixels: 256 x 256 are seen without a magnifying glass

struct ShowOptions {
  std::string task, folder, out;
  std::string split = "train";
  int64_t index = 0;
};

// Words with spaces between them; or the text itself, but for bytes that a terminal would obey.
std::string readable(const tasks::DataSet& data, std::string_view document) {
  std::string text;
  for (const char c : document) {
    const auto byte = static_cast<uint8_t>(c);
    if (!data.words.empty()) {
      text += (text.empty() ? "" : " ") + byte_text(data, byte);
    } else {
      const bool control = (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F;
      text += control ? byte_text(data, byte) : std::string(1, c);
    }
  }
  return text;
}

// Two characters a pixel, since characters are twice as high as wide; the fuller the brighter.
std::string drawn(std::string_view pixels) {
  constexpr std::string_view kInk = " .:-=+*#%@";
  std::string text;
  for (size_t i = 0; i < pixels.size(); ++i) {
    text.append(2, kInk[static_cast<uint8_t>(pixels[i]) * kInk.size() / 256]);
    if ((i + 1) % tasks::kSide == 0) text += '\n';
  }
  return text;
}

void print_document(const tasks::DataSet& data, std::string_view document, const char* which) {
  if (data.picture) {
    std::printf("%s", drawn(document).c_str());
    return;
  }
  std::printf("%s, %zu %s:\n%s\n", which, document.size(), data.words.empty() ? "bytes" : "tokens",
              readable(data, document).c_str());
}

}  // namespace

int run_data_show(const CommandLine& line) {
  ShowOptions options;
  CLI::App app("Prints an example with its label; pictures can be drawn to a PNG.");
  app.add_option("TASK", options.task, "listops, text, retrieval, image, pathfinder or wikitext")
      ->required();
  app.add_option("--split", options.split, "train (default), valid or test")->type_name("SPLIT");
  require_at_least(app.add_option("--index", options.index,
                                  "which example, or which 256 tokens of a text (default: 0)")
                       ->type_name("N"),
                   0);
  app.add_option("--data", options.folder, "the task's folder (default: data/TASK)")
      ->type_name("FOLDER");
  app.add_option("--out", options.out, "draw a picture to this PNG")->type_name("FILE");
  app.footer(
      "Examples:\n  fmmformer data show listops --split valid --index 3\n"
      "  fmmformer data show wikitext-2 --split test\n"
      "  fmmformer data show pathfinder --index 7 --out pathfinder.png");
  if (!read_options(app, line)) return kDone;
  check_output_file("--out", options.out);

  const auto split = enum_from_name<tasks::Split>(options.split);
  const auto needs_pictures = [&] {
    throw UsageError("--out draws pictures, " + options.task + " has texts; leave it out");
  };
  if (const Corpus* corpus = find_corpus(options.task)) {
    if (!options.out.empty()) needs_pictures();
    show_corpus({corpus_folder(*corpus, options.folder), split, options.index});
    return kDone;
  }
  const tasks::DataSet& data = data_set_named(options.task);
  if (!options.out.empty() && !data.picture) needs_pictures();
  const tasks::DataCache cache(data_folder(data, options.folder), data.task, split);
  if (options.index >= cache.examples()) {
    throw UsageError("--index " + std::to_string(options.index) + ": there are examples 0.." +
                     std::to_string(cache.examples() - 1));
  }
  const tasks::Example example = cache.example(options.index);
  const std::string label = example.label < data.labels.size()
                                ? std::string(data.labels[example.label])
                                : "(no class of this task)";
  std::printf("%s, example %lld of %lld, label %d: %s\n", cache.path().c_str(),
              static_cast<long long>(options.index), static_cast<long long>(cache.examples()),
              example.label, label.c_str());
  if (!options.out.empty()) {
    tasks::write_png(options.out, cache.document(example.first), kScale);
    std::printf("drawn to %s\n", options.out.c_str());
    return kDone;
  }
  print_document(data, cache.document(example.first), data.pair ? "first" : "whole");
  if (data.pair) print_document(data, cache.document(example.second), "second");
  return kDone;
}

}  // namespace fmmformer::cli
