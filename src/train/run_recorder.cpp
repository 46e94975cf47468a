// SPDX-License-Identifier: Apache-2.0
#include "train/run_recorder.h"

#include <algorithm>
#include <cmath>

namespace fmmformer::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kRecordVersion = 1;

// What reports call the attention of a model.
std::string attention_text(const AttentionConfig& attention) {
  if (attention.kind == AttentionKind::kSoftmax) return "softmax";
  if (attention.feature_maps.empty()) return "band";
  return attention.bandwidth > 0 ? "fmm" : "linear";
}

// What was overridden when the run began and whenever it went on; of a key the latest.
std::vector<std::string> joined_overrides(std::vector<std::string> before,
                                          const std::vector<std::string>& now) {
  for (const std::string& assignment : now) {
    const std::string key = assignment.substr(0, assignment.find('=') + 1);
    const auto same =
        std::ranges::find_if(before, [&](const std::string& old) { return old.starts_with(key); });
    if (same == before.end()) {
      before.push_back(assignment);
    } else {
      *same = assignment;
    }
  }
  return before;
}

Json record_of(const RunDescription& run) {
  const auto& [experiment, metric, identity] = run;
  const std::string task(enum_name(experiment.task.name));
  const int64_t length = tasks::make_task(experiment.task, 0)->length();
  return {{"format", "fmmformer-record"},
          {"version", kRecordVersion},
          {"kind", "training"},
          {"name", experiment.name},
          {"overrides", identity.overrides},
          {"seed", experiment.train.seed},
          {"task", task + " " + std::to_string(length)},
          {"attention", attention_text(experiment.model.attention)},
          {"about", experiment.about},
          {"reproduces", experiment.reproduces},
          {"status", enum_name(RunStatus::kRunning)},
          {"message", ""},
          {"created", identity.created},
          {"commit", identity.commit},
          {"command", identity.command},
          {"machine", identity.machine},
          {"versions", identity.versions},
          {"config", Json::parse(to_json(config_value(experiment)))},
          {"metric",
           {{"name", metric.name},
            {"higher_is_better", metric.higher_is_better},
            {"is_share", metric.is_percentage()}}},
          {"curves", {{"train", Json::array()}, {"valid", Json::array()}}}};
}

Json finite_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(); }

}  // namespace

RunRecorder::RunRecorder(const RunFolder& folder, const RunDescription& run,
                         std::optional<int64_t> resume_step)
    : folder_(folder),
      metric_(run.metric),
      log_(folder.metrics(), resume_step),
      events_(folder.events(), resume_step),
      record_(record_of(run)) {
  if (resume_step) keep_beginning(run);
  for (const Json& line : read_run_log(folder.metrics())) {
    const auto number = [&](std::string_view key) {
      const auto found = line.find(key);
      return found == line.end() || found->is_null() ? std::nan("") : found->get<double>();
    };
    add_to_curve({.step = line.value("step", int64_t{0}),
                  .split = enum_from_name<tasks::Split>(line.value("split", "train")),
                  .loss = number("loss"),
                  .metric = number(metric_.name)});
  }
}

void RunRecorder::keep_beginning(const RunDescription& run) {
  const Json before = folder_.read_record();
  for (const auto* member : {"created", "command"}) {
    if (before.contains(member)) record_[member] = before[member];
  }
  record_["overrides"] = joined_overrides(before.value("overrides", std::vector<std::string>()),
                                          run.identity.overrides);
}

void RunRecorder::add_to_curve(const MetricReport& report) {
  record_["curves"][std::string(enum_name(report.split))].push_back(
      {{"step", report.step},
       {"loss", finite_or_null(report.loss)},
       {"metric", finite_or_null(metric_.recorded(report.metric))}});
}

void RunRecorder::add(const MetricReport& report) {
  const bool of_training = report.split == tasks::Split::kTrain;
  Json line = {{"step", report.step},
               {"split", enum_name(report.split)},
               {"loss", report.loss},
               {std::string(metric_.name), report.metric}};
  if (of_training) line["learning_rate"] = report.learning_rate;
  line["tokens_per_second"] = report.tokens_per_second;
  log_.append(line);
  const std::string prefix = std::string(enum_name(report.split)) + "/";
  events_.scalar(prefix + "loss", report.step, report.loss);
  events_.scalar(prefix + std::string(metric_.name), report.step, report.metric);
  if (of_training) events_.scalar("learning_rate", report.step, report.learning_rate);
  add_to_curve(report);
}

void RunRecorder::set(std::string_view member, Json value) {
  record_[std::string(member)] = std::move(value);
}

void RunRecorder::write(RunStatus status, std::string_view message) {
  record_["status"] = enum_name(status);
  record_["message"] = message;
  folder_.write_record(record_);
}

}  // namespace fmmformer::train
