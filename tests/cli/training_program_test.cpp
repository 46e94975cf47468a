// SPDX-License-Identifier: Apache-2.0
// Training, scoring, applying and reporting, as a user meets them.
#include <gmock/gmock.h>
#include <signal.h>

#include <chrono>
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

  const Outcome scored = run_program("eval --json --batches 3 --run " + path("run"));
  EXPECT_EQ(scored.exit_code, 0) << scored.text;
  EXPECT_GT(json::parse(scored.text).at("count").get<double>(), 0);

  std::ofstream(folder_ / "in.jsonl") << "{\"tokens\": [1, 2, 3, 0]}\n[4, 4]\n";
  const Outcome applied =
      run_program("predict --run " + path("run") + " " + path("in.jsonl") + " -o " +
                  path("out.jsonl") + " --logits " + path("logits.safetensors"));
  EXPECT_EQ(applied.exit_code, 0) << applied.text;
  std::istringstream lines(text_of("out.jsonl"));
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(json::parse(line).at("next_tokens").size(), 4u);
  EXPECT_THAT(text_of("logits.safetensors"), HasSubstr("logits.1"));

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
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count)
    EXPECT_TRUE(json::parse(line).contains("event")) << line;
  EXPECT_GE(count, 10);
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
      {"train " + path("small.toml") + " --set train.steps=many", "train.steps"},
      {"train " + path("small.toml") + " --device gpu", "cuda"},
      {"train " + path("run") + " --resume --set model.dim=32", "--init-from"},
      {"eval --run " + path("nothing"), "no run folder"},
      {"predict --run " + path("run") + " " + path("letters.jsonl"), "letters.jsonl:1"},
      {"predict --run " + path("run") + " " + path("large.jsonl"), "large.jsonl:2"},
      {"report " + path("nothing"), "nothing"},
  };
  for (const auto& [arguments, right] : mistakes) {
    const Outcome outcome = run_program(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments << "\n" << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr(right)) << arguments;
    EXPECT_THAT(outcome.text, Not(HasSubstr("frame #"))) << arguments;
  }
}

// Starts training in a child and returns its number.
pid_t start_training(const std::string& config, const std::string& run, bool resume) {
  const pid_t child = fork();
  if (child != 0) return child;
  if (resume) {
    execl(FMMFORMER_PROGRAM_PATH, "fmmformer", "train", run.c_str(), "--resume", "--quiet",
          "--threads", "1", nullptr);
  } else {
    execl(FMMFORMER_PROGRAM_PATH, "fmmformer", "train", config.c_str(), "--out", run.c_str(),
          "--quiet", "--threads", "1", nullptr);
  }
  _exit(127);
}

TEST_F(TrainingProgram, CtrlCSavesAndSaysHowToGoOn) {
  const Outcome outcome =
      run_program("train " + path("small.toml") + " --threads 1 --set train.steps=1000000 --out " +
                  path("run") + " & pid=$!; sleep 3; kill -INT $pid; wait $pid");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_THAT(outcome.text, AllOf(HasSubstr("saved"), HasSubstr("--resume")));
}

TEST_F(TrainingProgram, ARunKilledAtAnyMomentGoesOnAndEndsWithTheSameMetrics) {
  train("straight", "--set train.steps=60");
  std::ofstream(folder_ / "small.toml", std::ios::app) << "\n";
  const std::string run = (folder_ / "killed").string();
  const std::string config = (folder_ / "small60.toml").string();
  std::string text = kSmall;
  text.replace(text.find("steps = 30"), 10, "steps = 60");
  std::ofstream(config) << text;
  std::minstd_rand random(7);
  const auto is_done = [&] {
    const fs::path record = fs::path(run) / "record.json";
    return fs::exists(record) && json::parse(std::ifstream(record)).at("status") == "finished";
  };
  for (int attempt = 0; attempt < 40 && !is_done(); ++attempt) {
    const pid_t child = start_training(config, run, fs::exists(fs::path(run) / "config.toml"));
    const auto pause = std::chrono::milliseconds(400 + random() % 800);
    std::this_thread::sleep_for(pause);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
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

TEST_F(TrainingProgram, EveryPresetIsAValidConfigAndThePapersCopyExperimentsAreThere) {
  const Outcome outcome = run_program("presets --json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.text;
  int copies = 0;
  for (const json& preset : json::parse(outcome.text)) {
    if (!preset.at("name").get<std::string>().starts_with("copy/")) continue;
    ++copies;
    EXPECT_THAT(preset.at("reproduces").get<std::string>(), HasSubstr("Figure"));
  }
  EXPECT_EQ(copies, 24);
}

}  // namespace
}  // namespace fmmformer::cli
