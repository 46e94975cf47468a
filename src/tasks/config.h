// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "fmmformer/core/fields.h"

namespace fmmformer::tasks {

enum class TaskName { kCopy, kListops, kText, kRetrieval, kImage, kPathfinder, kWikitext };

/// Has a generator of data files of its own: `fmmformer data make`.
constexpr bool is_generated(TaskName task) {
  return task == TaskName::kListops || task == TaskName::kPathfinder;
}

struct CopyConfig {
  int64_t length = 128;
  int64_t symbols = 10;

  static void fields(auto& self, auto&& visit) {
    visit("length", self.length, Range{8, 1 << 20}, "tokens of an example, padding included");
    visit("symbols", self.symbols, Range{1, 1 << 20}, "different symbols, without the separator");
  }
};

inline constexpr std::string_view kDataHelp =
    "folder with train.fmmdata, valid.fmmdata, test.fmmdata, made by `fmmformer data`";

struct ListopsConfig {
  std::string data = "data/listops";
  int64_t length = 2048;

  static void fields(auto& self, auto&& visit) {
    visit("data", self.data, kDataHelp);
    visit("length", self.length, Range{8, 1 << 20},
          "tokens of an example, padding included; longer ones are cut");
  }
};

/// Text as bytes: reviews, and the documents of the retrieval task.
struct BytesConfig {
  std::string data;
  int64_t length = 4096;
  int64_t bytes = 4000;

  static void fields(auto& self, auto&& visit) {
    visit("data", self.data, kDataHelp);
    visit("length", self.length, Range{8, 1 << 20}, "tokens of a text, padding included");
    visit("bytes", self.bytes, Range{1, 1 << 20},
          "first bytes of a text that are read, at most length; the rest of length is padding");
  }
};

/// Grey pictures of 32 x 32 pixels, row by row.
struct PixelsConfig {
  std::string data;
  bool mask_black_pixels = true;

  static void fields(auto& self, auto&& visit) {
    visit("data", self.data, kDataHelp);
    visit("mask_black_pixels", self.mask_black_pixels,
          "true, as published: a token is a grey value, and black (0) is masked as padding is; "
          "false: a token is grey value + 1 and all pixels are seen");
  }
};

/// A text whose next token is to be predicted.
struct WikitextConfig {
  std::string data = "data/wikitext-2";
  int64_t length = 256;
  int64_t columns = 96;
  int64_t vocabulary = 0;

  static void fields(auto& self, auto&& visit) {
    visit("data", self.data,
          "folder with vocabulary.txt and train.fmmtokens, valid.fmmtokens, test.fmmtokens, made "
          "by `fmmformer data import wikitext`");
    visit("length", self.length, Range{1, 1 << 20}, "tokens of a window");
    visit("columns", self.columns, Range{1, 1 << 20},
          "parts that training reads side by side; as many as train.batch_size has each step go on "
          "where the one before ended");
    visit("vocabulary", self.vocabulary, Range{.low = 0},
          "tokens that the data must have; 0: as many as it has, which must be there then");
  }
};

/// The table of the named task counts, the others are left alone.
struct TaskConfig {
  TaskName name = TaskName::kCopy;
  CopyConfig copy;
  ListopsConfig listops;
  BytesConfig text{.data = "data/text"};
  BytesConfig retrieval{.data = "data/retrieval"};
  PixelsConfig image{.data = "data/image"};
  PixelsConfig pathfinder{.data = "data/pathfinder"};
  WikitextConfig wikitext;

  static void fields(auto& self, auto&& visit) {
    visit("name", self.name, "which task");
    visit("copy", self.copy, "repeat a random sequence after a separator");
    visit("listops", self.listops, "value of a nested list of MIN, MAX, MED and SM: 10 classes");
    visit("text", self.text, "is a film review, read byte by byte, for or against: 2 classes");
    visit("retrieval", self.retrieval, "does one paper cite the other: 2 classes");
    visit("image", self.image, "CIFAR-10 in grey, read pixel by pixel: 10 classes");
    visit("pathfinder", self.pathfinder, "does a dashed path join the two dots: 2 classes");
    visit("wikitext", self.wikitext, "the next word (or byte) of a text");
  }
};

/// Where the named task's data files are, in its table. Throws std::invalid_argument for a task
/// that makes its examples while it runs.
std::string& data_folder(TaskConfig& config);

}  // namespace fmmformer::tasks

template <>
struct fmmformer::EnumTable<fmmformer::tasks::TaskName> {
  static constexpr std::string_view kKind = "task";
  static std::span<const EnumName<tasks::TaskName>> entries() {
    using enum tasks::TaskName;
    static constexpr std::array<EnumName<tasks::TaskName>, 7> kEntries = {
        {{kCopy, "copy"},
         {kListops, "listops"},
         {kText, "text"},
         {kRetrieval, "retrieval"},
         {kImage, "image"},
         {kPathfinder, "pathfinder"},
         {kWikitext, "wikitext"}}};
    return kEntries;
  }
};
