// SPDX-License-Identifier: Apache-2.0
// For browser_test.py:
//   make_sample_report FOLDER                    writes synthetic runs and FOLDER/report.html, and
//                                                FOLDER/language_model/record.json beside them
//   make_sample_report --render PAGE RECORD...   renders records
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "report/synthetic_runs.h"
#include "report/write_report.h"

int main(int count, char** values) {
  const std::vector<std::string> arguments(values + 1, values + count);
  try {
    if (arguments.size() == 1) {
      const std::filesystem::path folder = arguments[0];
      fmmformer::report::write_synthetic_runs(folder / "runs");
      fmmformer::report::write_language_model(folder / "language_model");
      fmmformer::report::write_report({folder / "runs"}, folder / "report.html",
                                      {.title = "Copy task, three kinds of attention"});
    } else if (arguments.size() > 2 && arguments[0] == "--render") {
      fmmformer::report::write_report(
          {arguments.begin() + 2, arguments.end()}, arguments[1],
          {.lra_stand_ins = {{"lra/text/softmax.tuned", "lra/text/softmax.published"}}});
    } else {
      std::fprintf(stderr, "usage: make_sample_report FOLDER | --render PAGE RECORD...\n");
      return 2;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
