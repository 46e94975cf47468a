// SPDX-License-Identifier: Apache-2.0
#include "train/run_vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/temporary_folder.h"

namespace fmmformer::train {
namespace {

using tasks::Vocabulary;
using testing::AllOf;
using testing::HasSubstr;

class RunVocabulary : public testing::Test {
 protected:
  RunVocabulary() {
    experiment_.task.name = tasks::TaskName::kWikitext;
    experiment_.task.wikitext.data = (folder_ / "data").string();
    experiment_.model.vocabulary = trained_on_.size();
  }

  /// What is wrong with a run of `record` whose data holds `now`; "" when nothing is.
  std::string problem(const nlohmann::ordered_json& record, const Vocabulary& now) {
    now.write(folder_ / "data");
    RunFolder::create(folder_ / "run").write_record(record);
    std::string problem;
    try {
      check_vocabulary(RunPaths(folder_ / "run"), experiment_, "do this");
    } catch (const std::invalid_argument& error) {
      problem = error.what();
    }
    std::filesystem::remove_all(folder_ / "run");
    return problem;
  }

  TemporaryFolder folder_;
  ExperimentConfig experiment_;
  const Vocabulary trained_on_ = Vocabulary::of_words({"<eos>", "the", "cat"});
  const Vocabulary reordered_ = Vocabulary::of_words({"<eos>", "cat", "the"});
  const Vocabulary larger_ = Vocabulary::of_words({"<eos>", "the", "cat", "dog"});
  const nlohmann::ordered_json recorded_ = {{"vocabulary", vocabulary_record(trained_on_)}};
};

TEST_F(RunVocabulary, MustBeTheOneThatTheRecordNames) {
  EXPECT_EQ(problem(recorded_, trained_on_), "");
  EXPECT_THAT(
      problem(recorded_, larger_),
      AllOf(HasSubstr("(3 words, "), HasSubstr("holds now (4 words, "), HasSubstr("; do this")));
  EXPECT_THAT(problem(recorded_, reordered_), HasSubstr("in another order"));
  EXPECT_THAT(problem(recorded_, Vocabulary::of_bytes()), HasSubstr("256 bytes"));
}

TEST_F(RunVocabulary, OfARecordThatDoesNotNameItMustFitTheModel) {
  const nlohmann::ordered_json early = {{"name", "early"}};
  EXPECT_EQ(problem(early, trained_on_), "");
  EXPECT_EQ(problem(early, reordered_), "");
  EXPECT_THAT(problem(early, larger_), AllOf(HasSubstr("3 tokens"), HasSubstr("4 words")));
}

TEST_F(RunVocabulary, IsNothingToTasksWithoutAText) {
  experiment_.task.name = tasks::TaskName::kCopy;
  EXPECT_EQ(problem(recorded_, larger_), "");
}

}  // namespace
}  // namespace fmmformer::train
