// SPDX-License-Identifier: Apache-2.0
#include "tasks/retrieval.h"

#include <string>
#include <unordered_map>
#include <unordered_set>

#include "tasks/data/columns.h"

namespace fmmformer::tasks {
namespace {

constexpr std::array<std::string_view, 2> kRetrievalLabels = {"not cited", "cited"};

/// The documents of a file, each once: a set of their numbers, which is searched by their contents.
class DocumentPool {
 public:
  explicit DocumentPool(CacheWriter& out) : out_(out) {
    for (int64_t i = 0; i < out.documents(); ++i) known_.insert(static_cast<uint32_t>(i));
  }

  uint32_t number_of(std::string_view document) {
    document = document.substr(0, kRetrievalBytes);
    const auto found = known_.find(document);
    if (found != known_.end()) return *found;
    return *known_.insert(out_.add_document(document)).first;
  }

 private:
  struct Hash {
    using is_transparent = void;
    const CacheWriter& out;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
    size_t operator()(uint32_t number) const { return (*this)(out.document(number)); }
  };
  struct Equal {
    using is_transparent = void;
    const CacheWriter& out;
    bool operator()(uint32_t a, uint32_t b) const { return a == b; }
    bool operator()(std::string_view text, uint32_t number) const {
      return text == out.document(number);
    }
    bool operator()(uint32_t number, std::string_view text) const { return (*this)(text, number); }
  };

  CacheWriter& out_;
  std::unordered_set<uint32_t, Hash, Equal> known_{16, Hash{out_}, Equal{out_}};
};

using Documents = std::unordered_map<std::string, std::string>;  // by id

Documents read_documents(const std::filesystem::path& path) {
  TableReader table(path, "id TAB text");
  Documents documents;
  while (table.next()) {
    const auto columns = table.columns_and_rest(2);
    table.require_utf8(columns[1]);
    const bool fresh = documents.emplace(columns[0], columns[1].substr(0, kRetrievalBytes)).second;
    if (!fresh) {
      table.fail("document '" + std::string(columns[0]) + "' for the second time; remove one");
    }
  }
  return documents;
}

void read_retrieval(const Source& source, CacheWriter& out) {
  TableReader table(source.path,
                    "label TAB id1 TAB id2, or these and TAB text1 TAB text2 as LRA has them");
  DocumentPool pool(out);
  Documents documents;
  if (!source.documents.empty()) documents = read_documents(source.documents);
  const auto text_of = [&](std::string_view id) -> std::string_view {
    const auto found = documents.find(std::string(id));
    if (found != documents.end()) return found->second;
    table.fail("document '" + std::string(id) + "' is not in '" + source.documents.string() +
               "'; both files must come from the same place");
  };
  while (table.next()) {
    const bool texts = table.column_count() == 5;
    const auto columns = table.columns(texts ? 5 : 3);
    if (!texts && source.documents.empty()) {
      table.fail(
          "a pair of ids without texts; name the file with the texts (`id TAB text`) with "
          "--documents");
    }
    Example example{.label = table.label(columns[0], kRetrievalLabels.size())};
    example.first = pool.number_of(texts ? columns[3] : text_of(columns[1]));
    example.second = pool.number_of(texts ? columns[4] : text_of(columns[2]));
    out.add_example(example);
  }
}

}  // namespace

constinit const DataSet kRetrievalData = {
    .task = TaskName::kRetrieval,
    .about = "does one paper cite the other",
    .sources =
        "LRA's new_aan_pairs.{train,eval,test}.tsv, or pairs.{train,eval,test}.tsv: label, "
        "id1, id2, with docs.tsv: id, text",
    .labels = kRetrievalLabels,
    .pair = true,
    .read = read_retrieval};

RetrievalTask::RetrievalTask(const BytesConfig& config, uint64_t seed)
    : DataTask(
          kRetrievalData,
          {.length = config.length, .bytes = config.bytes, .vocabulary = 512, .first_token = 1},
          config.data, seed) {}

}  // namespace fmmformer::tasks
