// SPDX-License-Identifier: Apache-2.0
#include "tasks/fetch/sources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tasks/fetch/byte_text.h"

namespace fmmformer::tasks::fetch {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;
using testing::StartsWith;
using testing::ThrowsMessage;

TEST(DataSources, EachHasWhatAPersonNeedsToKnow) {
  std::set<std::string> tasks;
  for (const DataSource& source : data_sources()) {
    SCOPED_TRACE(source.task);
    EXPECT_TRUE(tasks.insert(source.task).second);
    EXPECT_FALSE(source.what.empty());
    EXPECT_FALSE(source.licence.empty());
    EXPECT_FALSE(source.citation.empty());
    EXPECT_FALSE(source.selection.folder.empty());
    EXPECT_FALSE(source.selection.wanted.empty());
    EXPECT_GT(source.archive.size + source.about_bytes, 0);
    EXPECT_THAT(source.import_folder, StartsWith(source.selection.folder));
    ASSERT_FALSE(source.archive.addresses.empty());
    for (const std::string& address : source.archive.addresses) {
      EXPECT_THAT(address, StartsWith("https://"));
    }
  }
  for (const char* task :
       {"listops", "text", "retrieval", "image", "pathfinder", "wikitext-2", "wikitext-103"}) {
    EXPECT_TRUE(tasks.contains(task)) << task;
  }
}

TEST(DataSources, AChecksumIsWholeOrNotThere) {
  for (const DataSource& source : data_sources()) {
    EXPECT_THAT(source.archive.sha256, MatchesRegex("([0-9a-f]{64})?")) << source.task;
  }
}

TEST(DataSources, OneReleaseServesThreeTasks) {
  const std::string name = data_source("listops").archive.name;
  EXPECT_EQ(data_source("retrieval").archive.name, name);
  EXPECT_EQ(data_source("pathfinder").archive.name, name);
  EXPECT_NE(data_source("listops").selection.folder, data_source("retrieval").selection.folder);
}

TEST(DataSources, AnUnknownTaskIsAnsweredWithTheNearest) {
  EXPECT_THAT([] { data_source("listop"); }, ThrowsMessage<std::invalid_argument>(AllOf(
                                                 HasSubstr("'listop'"), HasSubstr("wikitext-103"),
                                                 HasSubstr("did you mean 'listops'?"))));
  EXPECT_THAT([] { data_source("speech"); },
              ThrowsMessage<std::invalid_argument>(Not(HasSubstr("did you mean"))));
}

TEST(DataSources, AMirrorComesFirstAndMayBeAFolderOrTheFile) {
  const RemoteFile file = {.name = "set.gz", .addresses = {"https://origin/set.gz"}};
  for (const char* mirror : {"http://near/sets", "http://near/sets/", "http://near/sets/set.gz"}) {
    EXPECT_THAT(with_mirror(file, mirror).addresses,
                ElementsAre("http://near/sets/set.gz", "https://origin/set.gz"));
  }
}

TEST(ByteText, IsShortAndDecimal) {
  EXPECT_EQ(byte_text(0), "0 B");
  EXPECT_EQ(byte_text(999), "999 B");
  EXPECT_EQ(byte_text(1000), "1.0 kB");
  EXPECT_EQ(byte_text(170'052'171), "170.1 MB");
  EXPECT_EQ(byte_text(999'960), "1.0 MB");
  EXPECT_EQ(byte_text(8'230'000'000), "8.2 GB");
}

}  // namespace
}  // namespace fmmformer::tasks::fetch
