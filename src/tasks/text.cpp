// SPDX-License-Identifier: Apache-2.0
#include "tasks/text.h"

#include "tasks/data/columns.h"
#include "tasks/data/folder.h"

namespace fmmformer::tasks {
namespace {

constexpr std::array<std::string_view, 2> kTextLabels = {"negative", "positive"};

std::string review_of(const std::filesystem::path& file) {
  std::string text(stripped(read_whole(file)));
  const auto fail = [&](const std::string& what) {
    throw DataError("'" + file.string() + "': " + what);
  };
  if (text.empty()) fail("the review is empty; remove the file, or get it again");
  if (const size_t at = first_byte_not_utf8(text); at < text.size()) {
    fail("byte " + std::to_string(at + 1) +
         " of the review is not UTF-8; convert the file, such as with `iconv -f latin1 -t utf-8`");
  }
  return text;
}

void read_reviews(const std::filesystem::path& folder, CacheWriter& out) {
  constexpr std::array<std::string_view, kTextLabels.size()> kFolders = {"neg", "pos"};
  for (size_t label = 0; label < kFolders.size(); ++label) {
    const auto files = files_in(folder / kFolders[label], ".txt");
    if (files.empty()) {
      throw DataError("'" + (folder / kFolders[label]).string() +
                      "' has no .txt files; wanted is a folder with neg/*.txt and pos/*.txt");
    }
    for (const auto& file : files) out.add(review_of(file), static_cast<uint16_t>(label));
  }
}

void read_table(const std::filesystem::path& path, CacheWriter& out) {
  TableReader table(path, "label TAB id TAB text");
  while (table.next()) {
    const auto columns = table.columns_and_rest(3);  // reviews have TABs
    const uint16_t label = table.label(columns[0], kTextLabels.size());
    const std::string_view text = stripped(columns[2]);
    if (text.empty()) table.fail("the review is empty; remove the line, or get the file again");
    table.require_utf8(text);
    out.add(text, label);
  }
}

void read_text(const Source& source, CacheWriter& out) {
  std::filesystem::is_directory(source.path) ? read_reviews(source.path, out)
                                             : read_table(source.path, out);
}

}  // namespace

constinit const DataSet kTextData = {
    .task = TaskName::kText,
    .about = "is a film review for or against",
    .sources =
        "IMDb's aclImdb/{train,test} with {neg,pos}/*.txt, or {train,test}.tsv: label, id, "
        "text",
    .labels = kTextLabels,
    .split = {.shuffled = true, .valid_share = 10},
    .read = read_text};

TextTask::TextTask(const BytesConfig& config, uint64_t seed)
    : DataTask(
          kTextData,
          {.length = config.length, .bytes = config.bytes, .vocabulary = 512, .first_token = 1},
          config.data, seed) {}

}  // namespace fmmformer::tasks
