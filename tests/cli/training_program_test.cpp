// SPDX-License-Identifier: Apache-2.0
// Training, scoring, applying and reporting, as a user meets them.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>
#include <thread>

#include "cli/run_program.h"

namespace fmmformer::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kSmall = R"(name = "small"
[task.copy]
length = 16
symbols = 4
[model]
dim = 16
layers = 1
heads = 2
ffn_dim = 32
[model.attention]
causal = true
bandwidth = 3
[train]
steps = 30
batch_size = 4
log_every = 5
evaluate_every = 10
evaluation_batches = 1
checkpoint_every = 5
)";

class TrainingProgram : public Program {
 protected:
  void SetUp() override {
    Program::SetUp();
    std::ofstream(folder_ / "small.toml") << kSmall;
  }
  Outcome train(const std::string& run, const std::string& more = "") const {
    return run_program("train " + path("small.toml") + " --threads 1 --out " + path(run) + " " +
                       more);
  }
  std::string text_of(const std::string& name) const {
    std::ifstream file(folder_ / name);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
};

TEST_F(TrainingProgram, FromATrainedModelToScoresAnswersAndAPage) {
  const Outcome trained = train("run");
  EXPECT_EQ(trained.exit_code, 0) << trained.text;
  EXPECT_THAT(trained.text,
              AllOf(HasSubstr("parameters"), HasSubstr("step 30"), HasSubstr("done")));

  const Outcome scored = run_program("eval --json --batches 3 " + path("run"));
  EXPECT_EQ(scored.exit_code, 0) << scored.text;
  EXPECT_GT(json::parse(scored.text).at("count").get<double>(), 0);

  std::ofstream(folder_ / "in.jsonl") << "{\"tokens\": [1, 2, 3, 0]}\n[4, 4]\n";
  const Outcome applied =
      run_program("predict " + path("run") + " " + path("in.jsonl") + " -o " + path("out.jsonl") +
                  " --logits " + path("logits.safetensors"));
  EXPECT_EQ(applied.exit_code, 0) << applied.text;
  std::istringstream lines(text_of("out.jsonl"));
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(json::parse(line).at("next_tokens").size(), 4u);
  EXPECT_THAT(text_of("logits.safetensors"), HasSubstr("logits.1"));
  // The run may have a name, before or after the input.
  for (const std::string& order : {"--run " + path("run") + " " + path("in.jsonl"),
                                   path("in.jsonl") + " --run " + path("run")}) {
    EXPECT_EQ(run_program("predict " + order).text, text_of("out.jsonl")) << order;
  }

  const Outcome shown = run_program("report " + path("run") + " -o " + path("page.html"));
  EXPECT_EQ(shown.exit_code, 0) << shown.text;
  EXPECT_THAT(text_of("page.html"), HasSubstr("<html"));
}

TEST_F(TrainingProgram, ARunIsNotOverwrittenButGoneOnWith) {
  train("run", "--set train.steps=10");
  const Outcome again = train("run");
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.text, HasSubstr("--resume"));
  const Outcome longer = run_program("train " + path("run") + " --resume --set train.steps=20");
  EXPECT_EQ(longer.exit_code, 0) << longer.text;
  EXPECT_THAT(longer.text, HasSubstr("after step 10"));
}

TEST_F(TrainingProgram, QuietSaysNothingAndJsonSaysOnlyJson) {
  EXPECT_EQ(train("quiet", "--quiet").text, "");
  std::istringstream lines(train("json", "--json").text);
  std::vector<json> events;
  for (std::string line; std::getline(lines, line);) events.push_back(json::parse(line));
  EXPECT_GE(events.size(), 10U);
  for (const json& event : events) EXPECT_TRUE(event.contains("event")) << event;
  const json& last = events.back();
  EXPECT_EQ(last.at("event"), "ended");
  EXPECT_EQ(last.at("status"), "finished");
  EXPECT_EQ(last.at("folder"), (folder_ / "json").string());
  EXPECT_EQ(last.at("metric"), "accuracy");
  EXPECT_TRUE(last.at("best").is_number());
}

TEST_F(TrainingProgram, WhatCannotBeginEndsInJsonWithAnEventToo) {
  const Outcome outcome = train("run", "--json --set model.dim=many");
  EXPECT_EQ(outcome.exit_code, 2);
  const json event = json::parse(outcome.text.substr(0, outcome.text.find('\n')));
  EXPECT_EQ(event.at("event"), "ended");
  EXPECT_EQ(event.at("status"), "failed");
  EXPECT_THAT(event.at("message").get<std::string>(), HasSubstr("model.dim"));
}

TEST_F(TrainingProgram, ADamagedBestCheckpointIsPassedOverAndNamed) {
  train("run");
  const fs::path checkpoints = folder_ / "run" / "checkpoints";
  const json scored = json::parse(run_program("eval --json " + path("run")).text);
  char name[32];
  std::snprintf(name, sizeof name, "step-%08ld", scored.at("step").get<long>());
  fs::resize_file(checkpoints / name / "model.safetensors", 50);
  const std::string step = std::to_string(scored.at("step").get<long>());
  const Outcome outcome = run_program("eval " + path("run"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("note: the checkpoint of step " + step + " is damaged"),
                                  HasSubstr("used instead is that of step"), HasSubstr("--step")));
  const Outcome named = run_program("eval " + path("run") + " --step " + step);
  EXPECT_EQ(named.exit_code, 1);
  EXPECT_THAT(named.text, AllOf(HasSubstr("fmmformer eval: checkpoint"), HasSubstr("good are")));
}

TEST_F(TrainingProgram, TheDemoTrainsTimesAndWritesItsPageWhereItSays) {
  const std::string demo = "demo --steps 2 --lengths 64,128 --threads 1 --out " + path("demo");
  const Outcome outcome = run_program(demo);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_THAT(outcome.text,
              AllOf(HasSubstr("accuracy on the copy task after 2 steps: softmax"),
                    HasSubstr("at length 128 softmax attention takes"),
                    HasSubstr("The page: " + (folder_ / "demo/report.html").string() + "\n")));
  EXPECT_THAT(text_of("demo/report.html"), HasSubstr("<html"));
  EXPECT_GE(read_json("demo/scaling.json").at("series").size(), 3U);
  // Another one replaces what this one made; a folder of something else is left alone.
  EXPECT_EQ(run_program(demo).exit_code, 0);
  std::ofstream(folder_ / "mine.txt") << "precious";
  const Outcome refused = run_program("demo --steps 2 --out '" + folder_.string() + "'");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.text, HasSubstr("choose another with --out"));
}

TEST_F(TrainingProgram, MistakesExitWithTwoAndSayWhatIsRight) {
  std::ofstream(folder_ / "typo.toml") << "[train]\nstepps = 3\n";
  std::ofstream(folder_ / "torn.toml") << "[train\n";
  std::ofstream(folder_ / "newer.toml") << "format = 99\nx = 1\n";
  std::ofstream(folder_ / "letters.jsonl") << "[1, \"a\"]\n";
  std::ofstream(folder_ / "large.jsonl") << "[1]\n[1, 99]\n";
  train("run", "--set train.steps=5");
  const std::pair<std::string, const char*> mistakes[] = {
      {"train " + path("typo.toml"), "steps"},
      {"train " + path("typo.toml"), "typo.toml:2"},
      {"train " + path("torn.toml"), "torn.toml:1"},
      {"train " + path("newer.toml"), "newer fmmformer"},
      {"train missing.toml", "no such file"},
      {"train cpy/softmax_128", "copy/softmax_128"},
      {"train " + path("small.toml") + " --set train.steps=many",
       "fmmformer train: --set train.steps=many: train.steps is \"many\""},
      {"train " + path("small.toml") + " --quiet --json", "--quiet"},
      {"train " + path("small.toml") + " --device gpu", "cuda"},
      {"train " + path("run") + " --resume --set model.dim=32", "--init-from"},
      {"train demo/fmm --resume --out " + path("run"), "another config"},
      {"predict " + path("run") + " " + path("run"), "is a folder"},
      {"eval --run " + path("nothing"), "no run folder"},
      {"eval", "name one run folder"},
      {"eval " + path("run") + " --step -3", "0 or more"},
      {"eval " + path("run") + " --batches -1", "0 or more"},
      {"eval " + path("run") + " --step 4", "there are: 5"},
      {"eval " + path("run") + " --split tets", "did you mean 'test'"},
      {"predict " + path("run"), "an input"},
      {"predict " + path("run") + " " + path("letters.jsonl") + " -o /no/such/x", "/no/such"},
      {"demo --steps -5", "1 or more"},
      {"demo --seed -1", "--seed: got '-1'"},
      {"presets softmx", "did you mean softmax?"},
      {"predict --run " + path("run") + " " + path("letters.jsonl"), "letters.jsonl:1"},
      {"predict --run " + path("run") + " " + path("large.jsonl"), "large.jsonl:2"},
      {"report " + path("nothing"), "nothing"},
  };
  for (const auto& [arguments, right] : mistakes) {
    const Outcome outcome = run_program(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments << "\n" << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr(right)) << arguments;
    const std::string command = arguments.substr(0, arguments.find(' '));
    EXPECT_THAT(outcome.text, testing::StartsWith("fmmformer " + command + ": ")) << arguments;
    EXPECT_THAT(outcome.text, Not(HasSubstr("frame #"))) << arguments;
  }
}

bool wait_until(const std::function<bool()>& condition) {
  for (int tenth = 0; tenth < 600; ++tenth) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return false;
}

TEST_F(TrainingProgram, CtrlCSavesSaysHowToGoOnAndIsNoSuccessToAScript) {
  const fs::path run = folder_ / "run";
  const pid_t child = start_program({"train", (folder_ / "small.toml").string(), "--threads", "1",
                                     "--out", run.string(), "--set", "train.steps=1000000"},
                                    folder_ / "output.txt");
  // Any: on a busy machine the first may be gone again before anybody looks.
  const bool began = wait_until([&] {
    std::error_code not_there;
    for (const auto& entry : fs::directory_iterator(run / "checkpoints", not_there))
      if (entry.path().filename().string().starts_with("step-")) return true;
    return false;
  });
  kill(child, began ? SIGINT : SIGKILL);
  int status = 0;
  ASSERT_TRUE(wait_until([&] { return waitpid(child, &status, WNOHANG) == child; }));
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  // What it says can be typed as it stands, whether or not the program is in the PATH.
  EXPECT_THAT(text_of("output.txt"),
              AllOf(HasSubstr("saved"),
                    HasSubstr("  " FMMFORMER_PROGRAM_PATH " train " + run.string() + " --resume")));
}

TEST_F(TrainingProgram, ARunKilledAtAnyMomentGoesOnAndEndsWithTheSameMetrics) {
  train("straight", "--set train.steps=600");
  const std::string run = (folder_ / "killed").string();
  const std::string config = (folder_ / "small600.toml").string();
  std::string text = kSmall;
  text.replace(text.find("steps = 30"), 10, "steps = 600");
  std::ofstream(config) << text;
  std::minstd_rand random(7);
  const auto is_done = [&] {
    const fs::path record = fs::path(run) / "record.json";
    return fs::exists(record) && json::parse(std::ifstream(record)).at("status") == "finished";
  };
  int kills = 0;
  for (int attempt = 0; attempt < 100 && !is_done(); ++attempt) {
    const bool begun = fs::exists(fs::path(run) / "config.toml");
    const pid_t child =
        begun ? start_program({"train", run, "--resume", "--threads", "1"}, folder_ / "output.txt")
              : start_program({"train", config, "--out", run, "--threads", "1"},
                              folder_ / "output.txt");
    const auto pause = std::chrono::milliseconds(10 + random() % 150);
    std::this_thread::sleep_for(pause);
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    kills += WIFSIGNALED(status);
  }
  EXPECT_GT(kills, 0) << "no run was still going when it was to be killed";
  if (!is_done()) run_program("train '" + run + "' --resume --quiet --threads 1");
  ASSERT_TRUE(is_done());
  const auto metrics = [&](const std::string& name) {
    std::vector<std::string> lines;
    std::ifstream file(folder_ / name / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      json values = json::parse(line);
      values.erase("tokens_per_second");
      lines.push_back(values.dump());
    }
    return lines;
  };
  EXPECT_EQ(metrics("straight"), metrics("killed"));
}

TEST_F(TrainingProgram, EveryPresetIsAValidConfigAndThePapersExperimentsAreThere) {
  const Outcome outcome = run_program("presets --json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.text;
  int copies = 0, controls = 0, language_models = 0;
  for (const json& preset : json::parse(outcome.text)) {
    const std::string name = preset.at("name"), reproduces = preset.at("reproduces");
    const bool copy = name.starts_with("copy/"), text = name.starts_with("wikitext");
    const bool control = name.starts_with("copy/fmm1_") && name.find("band") == std::string::npos;
    copies += copy && !control, controls += control, language_models += text;
    if (control) {
      EXPECT_EQ(reproduces, "") << name;
    } else if (copy || text) {
      EXPECT_THAT(reproduces, HasSubstr(copy ? "Figure" : "Table")) << name;
    }
  }
  EXPECT_EQ(copies, 24);
  EXPECT_EQ(controls, 3);
  EXPECT_GE(language_models, 14);
}

}  // namespace
}  // namespace fmmformer::cli
