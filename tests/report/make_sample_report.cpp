// SPDX-License-Identifier: Apache-2.0
// Writes synthetic runs and their report into a folder, for browser_test.py:
//   make_sample_report FOLDER   ->   FOLDER/runs/*/record.json, FOLDER/report.html
#include <cstdio>
#include <exception>
#include <filesystem>

#include "report/synthetic_runs.h"
#include "report/write_report.h"

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: make_sample_report FOLDER\n");
    return 2;
  }
  try {
    const std::filesystem::path folder = arguments[1];
    fmmformer::report::write_synthetic_runs(folder / "runs");
    fmmformer::report::write_report({folder / "runs"}, folder / "report.html",
                                    {.title = "Copy task, three kinds of attention"});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
