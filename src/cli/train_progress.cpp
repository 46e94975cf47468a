// SPDX-License-Identifier: Apache-2.0
#include "cli/train_progress.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/formatted.h"
#include "cli/live_line.h"

namespace fmmformer::cli {
namespace {

using train::Metric;
using train::MetricReport;
using train::RunOutcome;
using train::RunStatus;
using train::StepReport;
using Json = nlohmann::ordered_json;

/// "accuracy 97.31 %".
std::string metric_text(const Metric& metric, double value) {
  return std::string(metric.name) + formatted(" %.2f", value) +
         (metric.unit.empty() ? "" : " " + std::string(metric.unit));
}

/// A line for every evaluation; between them a live line, or in a pipe a line every few seconds.
class TextProgress : public train::TrainListener {
  static constexpr auto kLiveEvery = std::chrono::milliseconds(100);
  static constexpr auto kPlainEvery = std::chrono::seconds(10);
  using Clock = std::chrono::steady_clock;

 public:
  void started(int64_t parameters, int64_t first_step, const Metric& metric) override {
    metric_ = metric;
    print(formatted(
        "%s parameters%s", count_text(static_cast<double>(parameters)).c_str(),
        first_step > 0 ? formatted(", going on after step %ld", first_step).c_str() : ""));
  }

  void stepped(const StepReport& report) override {
    const auto now = Clock::now();
    if (now - shown_ <
        (live_.on_terminal() ? Clock::duration(kLiveEvery) : Clock::duration(kPlainEvery)))
      return;
    shown_ = now;
    const std::string text = formatted(
        "step %ld/%ld  loss %.4f  %s tokens/s  %s left", report.step, report.steps, report.loss,
        count_text(report.tokens_per_second).c_str(), duration_text(report.seconds_left).c_str());
    live_.on_terminal() ? live_.show(text + last_valid_) : print(text);
  }

  void evaluating(int64_t done, int64_t all) override {
    live_.show(formatted("evaluating %ld/%ld", done, all));
  }

  void measured(const MetricReport& report) override {
    if (report.split == tasks::Split::kTrain) return;  // the live line has it
    const std::string metric = metric_text(metric_, report.metric);
    print(formatted("step %-7ld %-5s loss %.4f  %s%s", report.step,
                    std::string(enum_name(report.split)).c_str(), report.loss, metric.c_str(),
                    report.is_best ? "  (best so far)" : ""));
    last_valid_ = "  |  " + metric;
  }

  void noticed(const std::string& text) override { print("note: " + text); }

  void ended(const RunOutcome& outcome) override {
    if (outcome.status != RunStatus::kFinished) return;  // the command says why
    print(formatted("done: best %s at step %ld, %s; the run is in ",
                    metric_text(outcome.metric, outcome.best_metric).c_str(), outcome.best_step,
                    duration_text(outcome.seconds).c_str()) +
          outcome.folder.string());
  }

  ~TextProgress() override { live_.clear(); }

 private:
  void print(const std::string& text) const {
    live_.clear();
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  }

  LiveLine live_;
  Metric metric_;
  std::string last_valid_;
  Clock::time_point shown_ = Clock::now();
};

class QuietProgress : public train::TrainListener {
 public:
  void noticed(const std::string& text) override {
    std::fprintf(stderr, "note: %s\n", text.c_str());
  }
};

class JsonProgress : public train::TrainListener {
 public:
  void started(int64_t parameters, int64_t first_step, const Metric& metric) override {
    metric_ = metric;
    print({{"event", "started"}, {"parameters", parameters}, {"step", first_step}});
  }
  void measured(const MetricReport& report) override {
    print({{"event", "measured"},
           {"step", report.step},
           {"split", enum_name(report.split)},
           {"loss", finite(report.loss)},
           {std::string(metric_.name), finite(report.metric)},
           {"tokens_per_second", finite(report.tokens_per_second)}});
  }
  void saved(int64_t step, const std::string& path) override {
    print({{"event", "saved"}, {"step", step}, {"path", path}});
  }
  void noticed(const std::string& text) override { print({{"event", "note"}, {"text", text}}); }
  void ended(const RunOutcome& outcome) override {
    Json line = {{"event", "ended"}, {"status", enum_name(outcome.status)}};
    if (!outcome.message.empty()) line["message"] = outcome.message;
    if (!outcome.folder.empty()) {  // it had begun
      line["folder"] = outcome.folder.string();
      line["step"] = outcome.step;
      line["metric"] = outcome.metric.name;
      line["best"] = finite(outcome.best_metric);
      line["best_step"] = outcome.best_step;
      line["seconds"] = outcome.seconds;
    }
    print(line);
  }

 private:
  static Json finite(double value) { return std::isfinite(value) ? Json(value) : Json(); }
  static void print(const Json& line) {
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }
  Metric metric_;
};

}  // namespace

std::unique_ptr<train::TrainListener> make_progress(ProgressStyle style) {
  switch (style) {
    case ProgressStyle::kQuiet:
      return std::make_unique<QuietProgress>();
    case ProgressStyle::kJson:
      return std::make_unique<JsonProgress>();
    case ProgressStyle::kAuto:
      break;
  }
  return std::make_unique<TextProgress>();
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  if (seconds < 59.95) return formatted("%.1f s", seconds);  // beyond, it would show as 60.0 s
  const auto whole = static_cast<int64_t>(std::lround(seconds));
  if (whole < 3600) return formatted("%ld min %02ld s", whole / 60, whole % 60);
  return formatted("%ld h %02ld min", whole / 3600, whole / 60 % 60);
}

std::string count_text(double count) {
  // The limits are where three digits would round up to the next unit.
  if (count < 999.5) return formatted("%.0f", count);
  if (count < 999.5e3) return formatted("%.3g k", count / 1e3);
  return formatted("%.3g M", count / 1e6);
}

}  // namespace fmmformer::cli
