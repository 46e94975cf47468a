// SPDX-License-Identifier: Apache-2.0
#include "cli/program.h"

int main(int argc, char** argv) {
  return fmmformer::cli::run_program({"fmmformer", {argv + 1, argv + argc}, argv[0]});
}
