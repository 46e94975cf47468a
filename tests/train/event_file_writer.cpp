// SPDX-License-Identifier: Apache-2.0
// Writes a run and its resumption as event files into the folder given: see read_event_file.py.
#include <cstdint>

#include "train/event_file.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  {
    fmmformer::train::EventFile first(argv[1]);
    for (int64_t step = 0; step <= 500; ++step) {
      first.scalar("train/loss", step, 1.0 / static_cast<double>(step + 1));
      if (step % 100 == 0) first.scalar("dev/accuracy", step, static_cast<double>(step));
    }
  }
  fmmformer::train::EventFile resumed(argv[1], 300);
  for (int64_t step = 301; step <= 400; ++step) {
    resumed.scalar("train/loss", step, -static_cast<double>(step));
  }
  resumed.scalar("large", int64_t{1} << 40, 1e30);
  return 0;
}
