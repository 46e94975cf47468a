// SPDX-License-Identifier: Apache-2.0
// Going on with a text and looking into a trained model, as a user meets them.
#include <gmock/gmock.h>

#include <fstream>
#include <functional>
#include <sstream>

#include "cli/run_program.h"

namespace fmmformer::cli {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr const char* kWords = R"(name = "wikitext2/fmm1_band5"
[task]
name = "wikitext"
[task.wikitext]
data = "DATA"
length = 12
columns = 4
[model]
dim = 16
layers = 2
heads = 2
ffn_dim = 32
positions = "sinusoid_descending"
output = "adaptive_softmax"
cutoffs = [6]
[model.attention]
causal = true
bandwidth = 3
[train]
steps = 20
batch_size = 4
log_every = 5
evaluate_every = 10
evaluation_batches = 0
checkpoint_every = 10
)";

constexpr const char* kCopies = R"(name = "copies"
[task.copy]
length = 16
symbols = 4
[model]
dim = 16
layers = 2
heads = 2
ffn_dim = 32
[model.attention]
kind = "softmax"
causal = true
[train]
steps = 10
batch_size = 4
evaluate_every = 10
evaluation_batches = 1
)";

constexpr const char* kLists = R"(name = "lists"
[task]
name = "listops"
[task.listops]
data = "DATA"
length = 64
[model]
kind = "sequence_classifier"
dim = 16
layers = 2
heads = 2
ffn_dim = 32
positions = "learned"
[train]
steps = 4
batch_size = 4
evaluate_every = 4
evaluation_batches = 1
)";

/// A model of words, trained once for all tests: a few steps are enough to go on with a text.
class GenerateProgram : public Program {
 protected:
  static void SetUpTestSuite() {
    home_ = std::filesystem::temp_directory_path() /
            ("fmmformer_generate_test_" + std::to_string(getpid()));
    std::filesystem::create_directories(home_);
    std::ofstream text(home_ / "train.txt");
    for (int i = 0; i < 60; ++i) text << "the cat saw a dog and the dog saw <unk> .\n";
    text.close();
    import("words", "");
    import("bytes", "--level byte");
    train("words", kWords, "");
    train("bytes", kWords, "--set model.cutoffs=[100] --set name=bytes");
    train("copies", kCopies, "");
    const Outcome made = run_program(
        "data make listops --count 20 --valid 8 --test 8 --shortest 8 --longest 60 --out '" +
        (home_ / "lists_data").string() + "'");
    ASSERT_EQ(made.exit_code, 0) << made.text;
    train("lists", kLists, "");
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(home_); }

  static void import(const std::string& name, const std::string& more) {
    const Outcome outcome =
        run_program("data import wikitext --train '" + (home_ / "train.txt").string() +
                    "' --out '" + (home_ / (name + "_data")).string() + "' " + more);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.text;
  }
  static void train(const std::string& name, std::string config, const std::string& more) {
    if (const size_t at = config.find("DATA"); at != std::string::npos) {
      config.replace(at, 4, (home_ / (name + "_data")).string());
    }
    const std::string file = (home_ / (name + ".toml")).string();
    std::ofstream(file) << config;
    const Outcome outcome =
        run_program("train '" + file + "' --threads 1 --quiet --out " + run(name) + " " + more);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.text;
  }
  static std::string run(const std::string& name) { return "'" + (home_ / name).string() + "'"; }
  static json record(const std::string& name) {
    return json::parse(std::ifstream(home_ / name / "record.json"));
  }

  static inline std::filesystem::path home_;
};

TEST_F(GenerateProgram, GoesOnWithWordsAndTheSameSeedGivesTheSameText) {
  const std::string command = "generate " + run("words") + " --tokens 40 --prompt 'the cat'";
  const Outcome first = run_program(command), again = run_program(command);
  EXPECT_EQ(first.exit_code, 0) << first.text;
  EXPECT_THAT(first.text, AllOf(StartsWith("the cat "), HasSubstr("40 tokens, ")));
  const auto text = [](const Outcome& outcome) {  // without its speed
    return outcome.text.substr(0, outcome.text.find("40 tokens"));
  };
  EXPECT_EQ(text(again), text(first));
  EXPECT_NE(text(run_program(command + " --seed 2")), text(first));
}

TEST_F(GenerateProgram, EverySampleIsAJsonObjectIfSoAsked) {
  const Outcome outcome = run_program("generate --run " + run("words") +
                                      " --tokens 5 --samples 3 --json --temperature 0.8 --top-k 4 "
                                      "--top-p 0.9 --repetition-penalty 1.2");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.text;
  std::istringstream lines(outcome.text);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const json sample = json::parse(line);
    EXPECT_EQ(sample.at("token_ids").size(), 5u);
    EXPECT_EQ(sample.at("sample"), count + 1);  // as the text counts them
    EXPECT_EQ(sample.at("prompt"), "\n");       // where no prompt is given, a line begins
    EXPECT_EQ(sample.at("sampling").at("top_k"), 4);
  }
  EXPECT_EQ(count, 3);
}

TEST_F(GenerateProgram, BytesAndTokensOfOtherTasksAreTextToo) {
  const Outcome bytes =
      run_program("generate " + run("bytes") + " --tokens 20 --prompt 'the c' --json");
  ASSERT_EQ(bytes.exit_code, 0) << bytes.text;
  EXPECT_EQ(json::parse(bytes.text).at("prompt"), "the c");
  const Outcome copies =
      run_program("generate " + run("copies") + " --tokens 3 --prompt '3 1 4 0' --temperature 0");
  EXPECT_EQ(copies.exit_code, 0) << copies.text;
  EXPECT_THAT(copies.text, StartsWith("3 1 4 0 "));
}

TEST_F(GenerateProgram, SavedSamplesAndFindingsAreInTheReport) {
  for (const std::string& command :
       {"generate " + run("words") + " --tokens 4 --prompt 'the dog' --save --top-k 3",
        "analyze rank " + run("words") + " --matrices 6 --bandwidths 0,2",
        "analyze bands " + run("words"), "analyze maps " + run("words") + " --example 1"}) {
    const Outcome outcome = run_program(command);
    ASSERT_EQ(outcome.exit_code, 0) << command << "\n" << outcome.text;
  }
  const json kept = record("words");
  EXPECT_EQ(kept.at("samples").at(0).at("prompt"), "the dog");
  const json& rank = kept.at("analysis").at("rank");
  EXPECT_EQ(rank.at("matrices"), 6);
  EXPECT_EQ(rank.at("bands").at(1).at("bound"), 10);  // 12 tokens, two diagonals gone
  EXPECT_EQ(kept.at("analysis").at("bands").at("widths").back(), 12);
  EXPECT_EQ(kept.at("maps").at("heads").size(), 4u);
  const Outcome page = run_program("report " + run("words") + " -o " + path("page.html"));
  EXPECT_EQ(page.exit_code, 0) << page.text;
}

TEST_F(GenerateProgram, AnalysesWorkOnEveryTaskAndLeaveTheRecordAloneIfSoAsked) {
  const json before = record("copies");
  for (const std::string& command :
       {"analyze rank " + run("copies") + " --no-save --matrices 3 --json " + path("rank.json"),
        "analyze rank " + run("lists") + " --no-save --matrices 3",
        "analyze bands " + run("lists") + " --no-save", "analyze maps " + run("lists"),
        "analyze bands " + run("copies") + " --no-save",
        "analyze maps " + run("copies") + " --no-save",
        "analyze curves " + run("copies") + " " + run("words") + " --json " +
            path("curves.json")}) {
    const Outcome outcome = run_program(command);
    ASSERT_EQ(outcome.exit_code, 0) << command << "\n" << outcome.text;
  }
  EXPECT_EQ(record("copies"), before);
  const json rank = read_json("rank.json");
  EXPECT_LT(rank.at("tokens"), 16);  // without what fills the example up
  EXPECT_EQ(rank.at("bands").size(), 4u);
  EXPECT_EQ(read_json("curves.json").at(1).at("metric"), "perplexity");
}

TEST_F(GenerateProgram, CurvesNameTheirFoldersAndEachMetricHasATable) {
  const Outcome outcome =
      run_program("analyze curves " + run("copies") + " " + run("words") + " " + run("bytes"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.text;
  for (const char* name : {"copies", "words", "bytes"}) {
    EXPECT_THAT(outcome.text, HasSubstr((home_ / name).string() + ": ")) << name;
  }
  EXPECT_THAT(outcome.text, AllOf(ContainsRegex("valid, accuracy\n +step +\\[1\\]\n"),
                                  ContainsRegex("valid, perplexity\n +step +\\[2\\] +\\[3\\]\n")));
}

TEST_F(GenerateProgram, WhatFillsTheLastWindowUpIsNotAnalysed) {
  // 72 tokens are 71 inputs: five windows of 12, and one of 11.
  const Outcome maps = run_program("analyze maps " + run("words") +
                                   " --example 5 --no-save --json " + path("maps.json"));
  ASSERT_EQ(maps.exit_code, 0) << maps.text;
  EXPECT_EQ(read_json("maps.json").at("maps").at("tokens").size(), 11u);
  EXPECT_EQ(read_json("maps.json").at("maps").at("tokens").back(), ".");
  const Outcome rank = run_program("analyze rank " + run("words") + " --no-save");
  EXPECT_THAT(rank.text, HasSubstr("of 11 .. 12 tokens"));
}

/// A run of its own, on data that may be changed.
class OwnRun : public Program {
 protected:
  void SetUp() override {
    Program::SetUp();
    write("train.txt", "the cat saw a dog and the dog saw <unk> .\n", 60);
    import_text("--train " + path("train.txt"));
    std::string config = kWords;
    config.replace(config.find("DATA"), 4, (folder_ / "data").string());
    std::ofstream(folder_ / "own.toml") << config;
    trained_ = run_program("train " + path("own.toml") + " --threads 1 --out " + path("own") +
                           " --set train.steps=10 --set train.test=true");
    ASSERT_EQ(trained_.exit_code, 0) << trained_.text;
  }
  void write(const std::string& name, const std::string& line, int times) const {
    std::ofstream text(folder_ / name);
    for (int i = 0; i < times; ++i) text << line;
  }
  void import_text(const std::string& what) const {
    const Outcome outcome = run_program("data import wikitext " + what + " --out " + path("data"));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.text;
  }
  std::string own(const std::string& command) const {
    return command + " " + path("own") + " --threads 1 ";
  }
  std::vector<std::string> uses() const {
    return {own("eval"), own("generate") + "--tokens 2", own("analyze bands") + "--no-save",
            own("train") + "--resume --set train.steps=12"};
  }
  void edit_record(const std::function<void(json&)>& change) const {
    json record = read_json("own/record.json");
    change(record);
    std::ofstream(folder_ / "own/record.json") << record;
  }

  Outcome trained_;
};

TEST_F(OwnRun, WithoutATestSplitIsScoredOnValidAndOneMayFollow) {
  EXPECT_THAT(trained_.text, HasSubstr("note: the data has no test split"));
  EXPECT_FALSE(read_json("own/record.json").at("result").contains("test_metric"));
  write("later.txt", "the dog saw the cat .\n", 10);
  import_text("--test " + path("later.txt"));
  const Outcome eval = run_program(own("eval") + "--split test");
  EXPECT_EQ(eval.exit_code, 0) << eval.text;
  EXPECT_THAT(eval.text, HasSubstr("(69 predictions)"));
  const Outcome more = run_program(own("train") + "--resume --set train.steps=12");
  EXPECT_EQ(more.exit_code, 0) << more.text;
  EXPECT_TRUE(read_json("own/record.json").at("result").contains("test_metric"));
}

TEST_F(OwnRun, IsNotUsedWithAnotherVocabularyThanItsOwn) {
  std::filesystem::copy(folder_ / "data", folder_ / "kept_data");
  write("train.txt", "a dog and a cat saw the dog and a <unk> .\n", 60);  // counted otherwise
  import_text("--train " + path("train.txt"));
  for (const std::string& command : uses()) {
    const Outcome outcome = run_program(command);
    EXPECT_EQ(outcome.exit_code, 2) << command << "\n" << outcome.text;
    EXPECT_THAT(outcome.text, AllOf(HasSubstr("another vocabulary"), HasSubstr("another order")))
        << command;
  }
  const std::string elsewhere = own("generate") + "--tokens 2 --data " + path("kept_data");
  EXPECT_EQ(run_program(elsewhere).exit_code, 0);
  std::filesystem::remove_all(folder_ / "data");
  EXPECT_EQ(run_program(elsewhere).exit_code, 0);
  EXPECT_THAT(run_program(own("generate")).text, HasSubstr("(--data FOLDER)"));
}

TEST_F(OwnRun, OfAnEarlierVersionIsHeldAgainstTheSizeOfItsVocabulary) {
  edit_record([](json& record) { record.erase("vocabulary"); });
  for (const std::string& command : uses()) {
    const Outcome outcome = run_program(command);
    EXPECT_EQ(outcome.exit_code, 0) << command << "\n" << outcome.text;
  }
  edit_record([](json& record) { record.erase("vocabulary"); });
  write("train.txt", "the cat and the dog saw the cat and the cat .\n", 60);
  import_text("--train " + path("train.txt"));
  for (const std::string& command : uses()) {
    const Outcome outcome = run_program(command);
    EXPECT_EQ(outcome.exit_code, 2) << command << "\n" << outcome.text;
    EXPECT_THAT(outcome.text, AllOf(HasSubstr("(9 tokens)"), HasSubstr("(7 words"))) << command;
  }
}

TEST_F(OwnRun, WithoutARecordIsToldBeforeTheWorkAndGetsNoLock) {
  std::filesystem::remove(folder_ / "own/record.json");
  std::filesystem::remove(folder_ / "own/lock");
  for (const std::string& command :
       {own("generate") + "--save --tokens 1000000", own("analyze rank") + "--matrices 1000000"}) {
    const Outcome outcome = run_program(command);
    EXPECT_EQ(outcome.exit_code, 2) << command << "\n" << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr("has no record.json")) << command;
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "own/lock"));
}

TEST_F(GenerateProgram, SpeedIsMeasuredWithRandomWeights) {
  const Outcome outcome = run_program("bench generation " + run("words.toml") +
                                      " --windows 1 --threads 1 --json " + path("speed.json"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.text;
  const json speed = read_json("speed.json");
  for (const json& row : speed.at("rows")) {
    EXPECT_GT(row.at("tokens_per_second").get<double>(), 0);
    EXPECT_LE(row.at("share_of_vocabulary_computed").get<double>(), 1);
  }
}

TEST_F(GenerateProgram, MistakesAreNamedWithAWayOut) {
  const std::pair<std::string, std::string> wrong[] = {
      {"generate " + run("words") + " --prompt 'the zebra ate a lion'",
       "does not have 'zebra', 'ate', 'lion'"},
      {"generate " + run("words") + " --prompt ''", "the prompt is empty"},
      {"generate " + run("words") + " --prompt '   '", "the prompt is empty"},
      {"generate " + run("bytes") + " --prompt ''", "the prompt is empty"},
      {"generate " + run("copies") + " --prompt '3 5'", "'5' is no token"},
      {"generate " + run("copies"), "there is no prompt"},
      {"generate " + run("words") + " --data " + run("bytes_data"), "holds now (256 bytes"},
      {"generate " + run("words") + " --data " + path("nowhere"), "nowhere': there is no"},
      {"generate " + run("words") + " --seed -1", "a whole number of 0 or more"},
      {"generate " + run("words") + " --seed 99999999999999999999999", "at most 92233"},
      {"analyze rank " + run("words") + " --seed -1", "a whole number of 0 or more"},
      {"bench generation --spread -1", "a number of 0 or more"},
      {"reproduce wikitext2 --seeds -1", "a whole number of 0 or more"},
      {"reproduce wikitext2 --budget -1", "a number of 0 or more"},
      {"data make listops --count 1 --seed -1", "a whole number of 0 or more"},
      {"eval " + run("words") + " --data book.txt",
       "data import wikitext --test book.txt --out " + (home_ / "words_data").string()},
      {"generate " + run("words") + " --top-p 1.5", "allowed: 0..1"},
      {"generate " + run("words") + " --temperature -1", "allowed: 0..100"},
      {"generate " + run("words") + " --tokens 0", "1 or more"},
      {"generate " + run("words") + " --prompt-file " + path("nowhere"), "nowhere"},
      {"generate " + run("lists"), "holds a sequence_classifier"},
      {"generate", "name one run folder"},
      {"generate " + path("nowhere"), "no run folder"},
      {"analyze rank " + path("nowhere"), "no run folder"},
      {"analyze rank " + run("words") + " --split exam", "exam"},
      {"analyze maps " + run("words") + " --example 100000", "there are examples 0.."},
      {"analyze ranks", "did you mean rank?"}};
  for (const auto& [command, text] : wrong) {
    const Outcome outcome = run_program(command);
    EXPECT_EQ(outcome.exit_code, 2) << command << "\n" << outcome.text;
    EXPECT_THAT(outcome.text, AllOf(HasSubstr(text), Not(HasSubstr("frame #")))) << command;
  }
  const Outcome read_as_unknown =
      run_program("generate " + run("words") + " --prompt 'the zebra' --allow-unknown --tokens 2");
  EXPECT_EQ(read_as_unknown.exit_code, 0) << read_as_unknown.text;
  EXPECT_THAT(read_as_unknown.text, StartsWith("the <unk> "));
}

}  // namespace
}  // namespace fmmformer::cli
