// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "cli/commands.h"
#include "cli/lra_plan.h"
#include "report/write_report.h"

namespace fmmformer::cli {

int run_report(const CommandLine& line) {
  std::vector<std::string> paths;
  std::string output = "report.html", title;
  CLI::App app("Renders runs and benchmark records as one HTML page that needs nothing else.");
  app.add_option("RUNS", paths, "run folders, folders of runs, or record files")->required();
  app.add_option("-o,--output", output, "the page (default: report.html)")->type_name("FILE");
  app.add_option("--title", title, "its heading")->type_name("TEXT");
  app.footer("Example:\n  fmmformer report runs/* -o report.html");
  if (!read_options(app, line)) return kDone;

  report::PageOptions options{.lra_stand_ins = lra_stand_ins()};
  if (!title.empty()) options.title = title;
  const int64_t shown =
      report::write_report({paths.begin(), paths.end()}, output, std::move(options));
  std::printf("%s: %ld record%s\n", output.c_str(), shown, shown == 1 ? "" : "s");
  return kDone;
}

}  // namespace fmmformer::cli
