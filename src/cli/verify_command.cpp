// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include "bench/verification.h"
#include "cli/commands.h"
#include "cli/device_options.h"
#include "cli/formatted.h"
#include "cli/live_line.h"
#include "cli/version.h"
#include "fmmformer/attention/cpu_info.h"
#include "fmmformer/core/atomic_file.h"

namespace fmmformer::cli {
namespace {

using namespace fmmformer::bench;

struct VerifyOptions {
  bool quick = false;
  bool list = false;
  std::vector<std::string> cases;
  std::string filter;
  std::string json;
  DeviceOptions device;
};

/// A case of either operator: what is listed, and how it is held against its reference.
struct Job {
  AttentionCase attention_case;
  std::string shape;
  std::function<CaseReport(c10::ScalarType, const c10::Device&)> verify;
};

/// Whether `verify` takes a case on a GPU, or on a CPU.
bool is_verified(const AttentionCase& one, bool on_gpu) {
  return one.has_tag(CaseTag::kVerify) || (on_gpu && one.has_tag(CaseTag::kVerifyOnGpu));
}
bool is_quick(const AttentionCase& one) {
  return one.has_tag(CaseTag::kQuick) || one.has_tag(CaseTag::kVerifyOnGpu);
}

std::vector<Job> all_jobs() {
  std::vector<Job> jobs;
  for (const AttentionCase& one : attention_cases()) {
    jobs.push_back({one, shape_text(one), [&one](c10::ScalarType dtype, const c10::Device& device) {
                      return verify_case(one, dtype, /*seed=*/1, device);
                    }});
  }
  for (const FastWeightCase& one : fast_weight_cases()) {
    jobs.push_back(
        {one.attention, shape_text(one), [&one](c10::ScalarType dtype, const c10::Device& device) {
           return verify_case(one, dtype, /*seed=*/1, device);
         }});
  }
  return jobs;
}

Job job_named(const std::vector<Job>& jobs, const std::string& name) {
  for (const Job& job : jobs) {
    if (job.attention_case.name != name) continue;
    // Who asks for a case by name gets it anywhere.
    if (is_verified(job.attention_case, /*on_gpu=*/true)) return job;
    throw UsageError("case '" + name +
                     "' is for timing and too large for the reference; --list shows the others");
  }
  case_named(name);  // throws, and says what comes near
  throw UsageError("there is no case '" + name + "'; --list shows all");
}

std::vector<Job> chosen_jobs(const VerifyOptions& options) {
  const std::vector<Job> jobs = all_jobs();
  std::vector<Job> chosen;
  for (const std::string& name : options.cases) chosen.push_back(job_named(jobs, name));
  if (!options.cases.empty()) return chosen;
  for (const Job& job : jobs) {
    const AttentionCase& one = job.attention_case;
    if (!is_verified(one, options.device.asks_for_gpu())) continue;
    if (options.quick && !is_quick(one)) continue;
    if (one.name.find(options.filter) != std::string::npos) chosen.push_back(job);
  }
  if (chosen.empty()) {
    throw UsageError("no case has '" + options.filter + "' in its name" +
                     (options.quick ? " and is quick" : "") + "; --list shows all");
  }
  return chosen;
}

void print_list(const std::vector<Job>& jobs) {
  for (const Job& job : jobs) {
    std::string types;
    for (const c10::ScalarType dtype : job.attention_case.dtypes)
      types.append(" ").append(dtype_name(dtype));
    std::printf("%-40s %-32s%s\n", job.attention_case.name.c_str(), job.shape.c_str(),
                types.c_str());
  }
}

void print_report(const CaseReport& report) {
  const Check& worst = report.worst();
  std::printf("%-4s %-40s %-5s %-14s %9.2e of %9.2e  %.*s\n", report.passed() ? "ok" : "FAIL",
              report.name.c_str(), std::string(dtype_name(report.dtype)).c_str(),
              worst.tensor.c_str(), worst.error, worst.allowed, static_cast<int>(worst.rule.size()),
              worst.rule.data());
  if (report.passed()) return;
  for (const Check& check : report.checks) {
    if (check.passed()) continue;
    std::printf("       %-14s %9.2e of %9.2e  %.*s\n", check.tensor.c_str(), check.error,
                check.allowed, static_cast<int>(check.rule.size()), check.rule.data());
  }
}

nlohmann::json to_json(const std::vector<CaseReport>& reports) {
  nlohmann::json rows = nlohmann::json::array();
  for (const CaseReport& report : reports) {
    nlohmann::json checks = nlohmann::json::array();
    for (const Check& check : report.checks) {
      checks.push_back({{"tensor", check.tensor},
                        {"rule", check.rule},
                        {"error", check.error},
                        {"allowed", check.allowed}});
    }
    rows.push_back({{"case", report.name},
                    {"dtype", dtype_name(report.dtype)},
                    {"passed", report.passed()},
                    {"seconds", report.seconds},
                    {"checks", checks}});
  }
  return {{"version", project_version()},
          {"commit", git_commit()},
          {"instruction_set", active_instruction_set()},
          {"threads", at::get_num_threads()},
          {"cases", rows}};
}

std::vector<CaseReport> verify_all(const std::vector<Job>& jobs, const c10::Device& device) {
  const LiveLine live;
  std::vector<CaseReport> reports;
  size_t runs = 0;
  for (const Job& job : jobs) runs += job.attention_case.dtypes.size();
  for (const Job& job : jobs) {
    for (const c10::ScalarType dtype : job.attention_case.dtypes) {
      if (!device.is_cpu() && dtype == c10::kDouble) continue;  // fp64 runs on the CPU alone
      live.show(formatted("[%zu/%zu] %s %s", reports.size() + 1, runs,
                          job.attention_case.name.c_str(), std::string(dtype_name(dtype)).c_str()));
      reports.push_back(job.verify(dtype, device));
      live.clear();
      print_report(reports.back());
      std::fflush(stdout);
    }
  }
  return reports;
}

int summarise_reports(const std::vector<CaseReport>& reports) {
  double seconds = 0;
  size_t failed = 0;
  for (const CaseReport& report : reports) {
    seconds += report.seconds;
    failed += report.passed() ? 0 : 1;
  }
  std::printf("%zu of %zu within their allowance (%s, %.1f s)\n", reports.size() - failed,
              reports.size(), std::string(active_instruction_set()).c_str(), seconds);
  return failed == 0 ? kDone : kFailed;
}

}  // namespace

int run_verify(const CommandLine& line) {
  VerifyOptions options;
  CLI::App app(
      "Holds the operators on this machine against their double references: output and every "
      "gradient, over the\n"
      "named cases. A line per case: its worst tensor, that error, what is allowed, and by which "
      "rule.");
  app.add_flag("--quick", options.quick, "the quick cases only: under a minute on two cores");
  app.add_option("--case", options.cases, "only this case; may be repeated")
      ->type_name("NAME")
      ->allow_extra_args(false);
  app.add_option("--filter", options.filter, "only cases with this in their name")
      ->type_name("TEXT");
  app.add_flag("--list", options.list, "show the cases and run none; a GPU has more of them");
  app.add_option("--json", options.json, "write all checks to this file")->type_name("FILE");
  add_device_options(app, options.device);
  app.footer(
      "Exit code 1 when a case fails.\n\nExample:\n  fmmformer verify --quick --filter mask");
  if (!read_options(app, line)) return kDone;

  const std::vector<Job> jobs = chosen_jobs(options);
  if (options.list) {
    print_list(jobs);
    return kDone;
  }
  const c10::Device device = use_device(options.device);
  check_output_file("--json", options.json);
  const std::vector<CaseReport> reports = verify_all(jobs, device);
  if (!options.json.empty()) write_file_atomically(options.json, to_json(reports).dump(2) + "\n");
  return summarise_reports(reports);
}

}  // namespace fmmformer::cli
