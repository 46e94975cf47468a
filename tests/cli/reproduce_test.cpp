// SPDX-License-Identifier: Apache-2.0
// `reproduce` and `eval --data`, with models as small as they get.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/lra_plan.h"
#include "cli/reproduce_runs.h"
#include "core/temporary_folder.h"
#include "train/run_folder.h"

namespace fmmformer::cli {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct Outcome {
  int code = 0;
  std::string text;  // printed, or the error
};

Outcome outcome_of(int (*run)(const CommandLine&), const CommandLine& line) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Outcome outcome;
  std::string error;
  try {
    outcome.code = run(line);
  } catch (const CommandError& problem) {
    outcome.code = problem.code();
    error = problem.what();
  } catch (const std::exception& problem) {  // as dispatch() would have it
    outcome.code = kWrongUse;
    error = problem.what();
  }
  outcome.text =
      testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr() + error;
  return outcome;
}

// In a folder of its own, with the project's configs and without data.
class Reproduce : public testing::Test {
 protected:
  Reproduce() : before_(fs::current_path()) {
    fs::create_directory_symlink(FMMFORMER_CONFIGS, folder_ / "configs");
    fs::current_path(folder_.path());
  }
  ~Reproduce() override { fs::current_path(before_); }

  /// Two steps of one layer for each of the tasks and rows that the arguments choose.
  Outcome reproduce(std::vector<std::string> arguments, const std::string& out = "runs") const {
    arguments.insert(arguments.begin(), "lra");
    arguments.insert(arguments.end(), {"--out", folder_ / out, "--threads", "1"});
    return outcome_of(run_reproduce, {"fmmformer reproduce", std::move(arguments)});
  }
  Outcome tiny(std::vector<std::string> arguments, int steps = 2) const {
    arguments.push_back("--tiny");
    for (const char* setting : {"train.batch_size=2", "train.evaluation_batches=1",
                                "model.layers=1", "schedule.warmup=1", "train.evaluate_every=2"}) {
      arguments.insert(arguments.end(), {"--set", setting});
    }
    arguments.insert(arguments.end(), {"--set", "train.steps=" + std::to_string(steps)});
    return reproduce(std::move(arguments));
  }
  Outcome eval(std::vector<std::string> arguments) const {
    return outcome_of(run_eval, {"fmmformer eval", std::move(arguments)});
  }
  fs::path run_of(const std::string& task, const std::string& row) const {
    return folder_ / "runs" / task / (row + ".published") / "seed-1";
  }
  static nlohmann::ordered_json record_of(const fs::path& run) {
    return train::RunPaths(run).read_record();
  }

  TemporaryFolder folder_;
  fs::path before_;
};

TEST_F(Reproduce, EveryTaskTrainsInItsSmallVariantAndStandsInTheTable) {
  const Outcome outcome = tiny({"--rows", "fmm2_band5"});
  EXPECT_EQ(outcome.code, kDone) << outcome.text;
  for (const std::string_view task : report::kLraTasks) {
    EXPECT_THAT(outcome.text, HasSubstr("| " + std::string(task) + " "));
    const auto record = record_of(run_of(std::string(task), "fmm2_band5"));
    EXPECT_EQ(record.at("status"), "finished") << task;
    EXPECT_TRUE(record.at("result").contains("test_metric")) << task;
    EXPECT_GT(record.at("result").value("seconds", 0.0), 0);
  }
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("average"), HasSubstr("5/5  tiny/lra/pathfinder/")));
  EXPECT_TRUE(fs::exists(folder_ / "runs" / "report.html"));
}

TEST_F(Reproduce, WhatIsFinishedIsNotRunAgainAndATableNeedsNoRun) {
  const std::vector<std::string> listops = {"--tasks", "listops", "--rows", "softmax"};
  EXPECT_THAT(tiny(listops).text, HasSubstr("1/1  tiny/lra/listops/softmax.published, seed 1"));
  const std::string before = record_of(run_of("listops", "softmax")).dump();
  const Outcome again = tiny(listops);
  EXPECT_EQ(again.code, kDone);
  EXPECT_THAT(again.text, AllOf(Not(HasSubstr("1/1")), HasSubstr("| listops | softmax")));
  EXPECT_EQ(record_of(run_of("listops", "softmax")).dump(), before);
  const Outcome table = reproduce({"--tiny", "--table"});
  EXPECT_EQ(table.code, kDone);
  EXPECT_THAT(table.text, HasSubstr("| listops | softmax"));
}

TEST_F(Reproduce, WithoutTimeNothingBegins) {
  const Outcome outcome = tiny({"--tasks", "listops", "--rows", "softmax", "--budget", "0"});
  EXPECT_EQ(outcome.code, kDone);
  EXPECT_THAT(outcome.text, HasSubstr("0 of 1 runs are finished and the time is up"));
  EXPECT_FALSE(fs::exists(run_of("listops", "softmax")));
}

TEST_F(Reproduce, TimeThatEndsInARunSavesItAndTheSameCommandGoesOn) {
  const std::vector<std::string> listops = {"--tasks", "listops",  "--rows",
                                            "softmax", "--budget", std::to_string(1.0 / 60)};
  const Outcome cut = tiny(listops, /*steps=*/1'000'000);
  EXPECT_EQ(cut.code, kDone) << cut.text;
  EXPECT_THAT(cut.text, AllOf(HasSubstr("the time is up"), HasSubstr("interrupted at step")));
  const auto steps = record_of(run_of("listops", "softmax")).at("result").at("steps");
  EXPECT_LT(steps.get<int64_t>(), 1'000'000);
  const Outcome more = tiny(listops, 1'000'000);
  EXPECT_THAT(more.text, HasSubstr("going on after step " + steps.dump()));
}

TEST_F(Reproduce, KeepsTheModelOfTheBestSeedAndTheRecordsOfTheOthers) {
  tiny({"--tasks", "listops", "--rows", "softmax", "--seeds", "1,2"});
  const std::vector<LraRun> runs = lra_runs({.tasks = {"listops"},
                                             .rows = {"softmax"},
                                             .recipes = {"published"},
                                             .seeds = {1, 2},
                                             .tiny = true},
                                            folder_ / "runs");
  const fs::path kept = folder_ / "kept/listops/softmax.published";
  const auto set_metric = [](const fs::path& run, double metric) {
    auto record = record_of(run);
    record["result"]["best_metric"] = metric;
    std::ofstream(run / "record.json") << record;
  };
  set_metric(runs[0].folder, 0.2), set_metric(runs[1].folder, 0.7);
  for (int again = 0; again < 2; ++again) {  // the order of runs does not matter
    for (const LraRun& run : runs) keep_lra_run(run, folder_ / "kept");
    EXPECT_EQ(record_of(kept).at("seed"), 2);
    EXPECT_EQ(record_of(kept / "seed-1").at("seed"), 1);
    EXPECT_FALSE(fs::exists(kept / "seed-2"));
  }
  EXPECT_THAT(reproduce({"--tiny", "--table"}, "kept").text, HasSubstr("|     2 | 45.00 +-"));
  EXPECT_THAT(reproduce({"--tiny", "--table", "--seeds", "1"}, "kept").text,
              HasSubstr("|     1 | 20.00 |"));
  // What is kept can be scored like a run.
  const Outcome scored =
      eval({"--run", kept, "--data", folder_ / "runs/data/listops/test.fmmdata"});
  EXPECT_EQ(scored.code, kDone) << scored.text;
  EXPECT_THAT(scored.text, HasSubstr("(100 predictions)"));
  EXPECT_THAT(eval({"--run", kept, "--step", "77"}).text, HasSubstr("keeps the model of step 2"));
  EXPECT_THAT(eval({"--run", fs::path(kept).replace_extension(".tuned")}).text,
              HasSubstr("beside it there is '" + fs::path(kept).filename().string() + "'"));
}

TEST_F(Reproduce, WithoutATestSplitModelsAreScoredOnValidAloneAndANoteSaysSo) {
  std::ofstream(folder_ / "l.tsv") << "Source\tTarget\n[SM 5 6 ]\t1\n[MAX 2 9 ]\t9\n";
  const std::string source = folder_ / "l.tsv", data = folder_ / "d";
  outcome_of(run_data,
             {"fmmformer data",
              {"import", "listops", "--train", source, "--valid", source, "--out", data}});
  const Outcome outcome =
      tiny({"--tasks", "listops", "--rows", "softmax", "--set", "task.listops.data=" + data});
  EXPECT_EQ(outcome.code, kDone) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("listops has no test split here"));
  EXPECT_FALSE(record_of(run_of("listops", "softmax")).at("result").contains("test_metric"));
}

TEST_F(Reproduce, ATunedRecipeThatIsThePublishedOneIsTrainedOnceAndHasItsLine) {
  const Outcome outcome =
      tiny({"--tasks", "listops,pathfinder", "--rows", "linear", "--recipes", "published,tuned"});
  EXPECT_EQ(outcome.code, kDone) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("| pathfinder | linear | tuned "));
  EXPECT_THAT(outcome.text,
              HasSubstr("tuned is the published recipe, and its run: pathfinder/linear\n"));
  EXPECT_TRUE(fs::exists(run_of("pathfinder", "linear")));
  EXPECT_FALSE(fs::exists(folder_ / "runs/pathfinder/linear.tuned"));
  EXPECT_TRUE(fs::exists(folder_ / "runs/listops/linear.tuned")) << "which has another rate";
}

TEST_F(Reproduce, ATableOfTheExperimentsLeavesOutTheirSmallVariants) {
  tiny({"--tasks", "listops", "--rows", "softmax"});
  EXPECT_THAT(reproduce({"--table"}).text, HasSubstr("has no runs of these"));
  EXPECT_EQ(reproduce({"--table", "--tiny"}).code, kDone);
}

TEST_F(Reproduce, AFolderOfAnotherConfigIsNotMixedIn) {
  tiny({"--tasks", "listops", "--rows", "softmax"});
  const Outcome other =
      tiny({"--tasks", "listops", "--rows", "softmax", "--set", "model.dropout=0.3"});
  EXPECT_EQ(other.code, kWrongUse);
  EXPECT_THAT(other.text, HasSubstr("model.dropout is 0.1 there and 0.3"));
}

TEST_F(Reproduce, MistakesAreNamedAndEndWithTwo) {
  const std::pair<std::vector<std::string>, const char*> mistakes[] = {
      {{"--tasks", "listop"}, "did you mean listops?"},
      {{"--rows", "softmax,fmm3"}, "there is no 'fmm3'"},
      {{"--recipes", "tunde"}, "did you mean tuned?"},
      {{"--seeds", "x"}, "--seeds"},
      {{"--budget", "-1"}, "--budget"},
      {{"--rows", "softmax_1024", "--recipes", "tuned"}, "no config has these"},
      {{"--table"}, "has no runs of these"},
      {{"--table", "--keep", "x"}, "--keep"},
      {{"--tasks", "listops"}, "data make listops --count 96000 --valid 2000 --test 2000"},
      {{"--tasks", "image"}, "data import image data/downloads/cifar-10-batches-bin"},
      {{"--set", "model.dimm=3", "--tiny"}, "model.dim"},
  };
  for (const auto& [arguments, said] : mistakes) {
    const Outcome outcome = reproduce(arguments);
    EXPECT_THAT(outcome.text, HasSubstr(said));
    EXPECT_EQ(outcome.code, kWrongUse) << outcome.text;
  }
}

/// The language models on a text of a few hundred words, with models as small as they get.
class ReproduceWikitext : public Reproduce {
 protected:
  ReproduceWikitext() {
    std::ofstream text(folder_ / "text");
    for (int i = 0; i < 400; ++i) text << "word" << i * i % 17 << (i % 10 == 9 ? "\n" : " ");
    text.close();
    const std::string file = folder_ / "text";
    outcome_of(run_data, {"fmmformer data",
                          {"import", "wikitext", "--train", file, "--valid", file, "--test", file,
                           "--out", folder_ / "data"}});
  }

  Outcome wikitext(std::vector<std::string> arguments, const std::string& out = "runs") const {
    arguments.insert(arguments.begin(), "wikitext2");
    arguments.insert(arguments.end(), {"--out", folder_ / out, "--threads", "1"});
    return outcome_of(run_reproduce, {"fmmformer reproduce", std::move(arguments)});
  }
  Outcome small(std::vector<std::string> arguments) const {
    for (const std::string& setting : std::vector<std::string>{
             "task.wikitext.data=" + (folder_ / "data").string(), "task.wikitext.vocabulary=0",
             "task.wikitext.length=8", "task.wikitext.columns=4", "model.cutoffs=[5]",
             "model.dim=16", "model.heads=2", "model.ffn_dim=16", "model.layers=1",
             "train.precision=fp32", "train.batch_size=4", "train.steps=4",
             "train.evaluate_every=2", "schedule.warmup=1"}) {
      arguments.insert(arguments.end(), {"--set", setting});
    }
    return wikitext(std::move(arguments));
  }
};

TEST_F(ReproduceWikitext, ARowOfEachTableTrainsIsKeptAndStandsBesideThePapers) {
  const Outcome outcome = small(
      {"--rows", "linear,fmm2_fast_weights_band20", "--seeds", "1,2", "--keep", folder_ / "kept"});
  EXPECT_EQ(outcome.code, kDone) << outcome.text;
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("4/4  wikitext2/fmm2_fast_weights_band20, seed 2"),
                                  HasSubstr("The paper's are of WikiText-103"),
                                  HasSubstr("| linear "), HasSubstr("38.40"), HasSubstr("34.71")));
  const auto record = record_of(folder_ / "runs/fmm2_fast_weights_band20/seed-1");
  EXPECT_EQ(record.at("status"), "finished");
  EXPECT_GT(record.at("result").at("test_metric").get<double>(), 1) << "a perplexity";
  EXPECT_TRUE(fs::exists(folder_ / "runs/report.html"));
  EXPECT_TRUE(fs::exists(folder_ / "kept/linear/model.safetensors"));
  const Outcome again = small({"--rows", "linear", "--seeds", "1,2"});
  EXPECT_THAT(again.text, AllOf(Not(HasSubstr("1/2")), HasSubstr("| linear ")));
  const Outcome table = wikitext({"--table"}, "kept");
  EXPECT_EQ(table.code, kDone) << table.text;
  EXPECT_THAT(table.text, HasSubstr("| fmm2_fast_weights_band20 "));
}

TEST_F(ReproduceWikitext, OfTwoSeedsTheLowerPerplexityIsKept) {
  small({"--rows", "linear", "--seeds", "1,2"});
  const auto set_metric = [&](int seed, double metric) {
    const fs::path run = folder_ / "runs/linear" / seed_folder(seed);
    auto record = record_of(run);
    record["result"]["best_metric"] = metric;
    std::ofstream(run / "record.json") << record;
  };
  set_metric(1, 70), set_metric(2, 60);
  small({"--rows", "linear", "--seeds", "1,2", "--keep", folder_ / "kept"});
  EXPECT_EQ(record_of(folder_ / "kept/linear").at("seed"), 2);
  EXPECT_EQ(record_of(folder_ / "kept/linear/seed-1").at("seed"), 1);
}

TEST_F(ReproduceWikitext, MistakesAreNamedAndEndWithTwo) {
  const std::pair<std::vector<std::string>, const char*> mistakes[] = {
      {{"--rows", "lineer"}, "did you mean linear?"},
      {{"--table"}, "has no runs of these rows"},
      {{"--rows", "linear"}, "data import wikitext-2 data/downloads/wikitext-2"},
  };
  for (const auto& [arguments, said] : mistakes) {
    const Outcome outcome = wikitext(arguments);
    EXPECT_THAT(outcome.text, HasSubstr(said));
    EXPECT_EQ(outcome.code, kWrongUse) << outcome.text;
  }
}

/// A model of every task, untrained but for two steps; scored on files by hand.
class EvalOfFiles : public Reproduce {
 protected:
  EvalOfFiles() {
    fs::create_directory(scratch_);
    setenv("TMPDIR", scratch_.c_str(), 1);
  }
  ~EvalOfFiles() override { unsetenv("TMPDIR"); }

  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return folder_ / name;
  }
  Outcome score(const std::string& task, std::vector<std::string> arguments) const {
    if (!fs::exists(run_of(task, "softmax"))) tiny({"--tasks", task, "--rows", "softmax"});
    arguments.insert(arguments.begin(), {"--run", run_of(task, "softmax")});
    arguments.insert(arguments.end(), {"--threads", "1"});
    return eval(std::move(arguments));
  }

  const fs::path scratch_ = folder_ / "scratch";
};

TEST_F(EvalOfFiles, EverySourceFormatIsScoredAsItIs) {
  const std::string grey = '\1' + std::string(1024, '\x40'),
                    colour = '\1' + std::string(3072, '\x40');
  const std::string docs = write("docs.tsv", "a\tone text\nb\tanother\n");
  const std::vector<std::pair<std::string, std::vector<std::string>>> files = {
      {"listops", {"--data", write("l.tsv", "Source\tTarget\n( [SM 5 6 ] )\t1\n[MAX 2 9 ]\t9\n")}},
      {"text", {"--data", write("t.tsv", "1\tx\tgood\n0\ty\tbad\n")}},
      {"retrieval", {"--data", write("r.tsv", "1.0\ta\tb\n0.0\ta\ta\n"), "--documents", docs}},
      {"image", {"--data", write("i.bin", grey), "--data", write("c.bin", colour)}},
      {"pathfinder", {"--data", write("p.bin", grey + grey)}}};
  for (const auto& [task, arguments] : files) {
    const Outcome outcome = score(task, arguments);
    EXPECT_EQ(outcome.code, kDone) << task << outcome.text;
    EXPECT_THAT(outcome.text, AllOf(HasSubstr("accuracy"), HasSubstr("(2 predictions)"))) << task;
    EXPECT_THAT(outcome.text, HasSubstr(arguments[1])) << "names what was scored";
  }
}

TEST_F(EvalOfFiles, ADataFileMayHaveAnyNameAndIsScoredLikeItsSource) {
  const std::string source = write("l.tsv", "Source\tTarget\n[SM 5 6 ]\t1\n[MAX 2 9 ]\t9\n");
  outcome_of(run_data,
             {"fmmformer data", {"import", "listops", "--valid", source, "--out", folder_ / "d"}});
  fs::copy_file(folder_ / "d/valid.fmmdata", folder_ / "mine.fmmdata");
  const auto loss = [&](const std::string& file) {
    const Outcome outcome = score("listops", {"--data", file, "--json"});
    EXPECT_EQ(outcome.code, kDone) << outcome.text;
    return nlohmann::json::parse(outcome.text).at("loss").get<double>();
  };
  EXPECT_EQ(loss(source), loss(folder_ / "d/valid.fmmdata"));
  EXPECT_EQ(loss(source), loss(folder_ / "mine.fmmdata"));
}

TEST_F(EvalOfFiles, ADamagedDataFileIsNotScoredAndIsNamedAsTheUserDid) {
  const std::string source = write("l.tsv", "Source\tTarget\n[SM 5 6 ]\t1\n[MAX 2 9 ]\t9\n");
  outcome_of(run_data,
             {"fmmformer data", {"import", "listops", "--valid", source, "--out", folder_ / "d"}});
  fs::rename(folder_ / "d/valid.fmmdata", folder_ / "mine.fmmdata");
  std::fstream(folder_ / "mine.fmmdata", std::ios::in | std::ios::out).seekp(-1, std::ios::end)
      << '\x07';
  const Outcome outcome = score("listops", {"--data", folder_ / "mine.fmmdata"});
  EXPECT_EQ(outcome.code, kWrongUse);
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("mine.fmmdata"), HasSubstr("import it again")));
}

TEST_F(EvalOfFiles, MistakesNameTheFileAndLeaveNothingBehind) {
  const std::string good = write("l.tsv", "Source\tTarget\n[SM 5 6 ]\t1\n");
  const std::string wrong = write("w.tsv", "Source\tTarget\n[SM 5 6 ]\t77\n");
  const std::string cut = write("x.fmmdata", "garbage");
  score("image", {"--data", good});
  const std::pair<std::vector<std::string>, const char*> mistakes[] = {
      {{"--data", wrong}, "w.tsv:2"},
      {{"--data", folder_ / "none.tsv"}, "no such file"},
      {{"--data", cut}, "is no data file"},
      {{"--data", cut, "--data", good}, "by itself"},
      {{"--data", good, "--split", "test"}, "--split"},
      {{"--documents", good}, "--data"},
      {{"--data", folder_ / "runs/data/image/test.fmmdata"}, "holds image, test"},
  };
  for (const auto& [arguments, said] : mistakes) {
    const Outcome outcome = score("listops", arguments);
    EXPECT_THAT(outcome.text, HasSubstr(said));
    EXPECT_EQ(outcome.code, kWrongUse) << outcome.text;
  }
  EXPECT_TRUE(fs::is_empty(scratch_));
}

}  // namespace
}  // namespace fmmformer::cli
