// SPDX-License-Identifier: Apache-2.0
#include "bench/machine.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <limits>
#include <thread>

#include "fmmformer/attention/cpu_info.h"

namespace fmmformer::bench {
namespace {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

}  // namespace

double measure_product_rate() {
  constexpr int64_t kSize = 1024;
  constexpr int kRepeats = 20;
  // Twenty products are a quarter of a second, in which a neighbour's work may halve all of them:
  // rounds with pauses, until the best of them has stood for two more.
  constexpr int kMostRounds = 12, kRoundsToStand = 2;
  constexpr auto kPause = std::chrono::milliseconds(100);
  const c10::NoGradGuard no_gradients;
  const at::Tensor a = at::randn({kSize, kSize});
  const at::Tensor b = at::randn({kSize, kSize});
  at::Tensor out = at::empty({kSize, kSize});
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0, stood = 0; round < kMostRounds && stood < kRoundsToStand; ++round) {
    if (round > 0) std::this_thread::sleep_for(kPause);
    const double before = best;
    for (int i = 0; i < kRepeats; ++i) {
      const auto start = std::chrono::steady_clock::now();
      at::mm_out(out, a, b);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      best = std::min(best, took.count());
    }
    stood = best > 0.98 * before ? stood + 1 : 0;
  }
  return 2.0 * kSize * kSize * kSize / best;
}

Machine look_at_machine() {
  return {.cpu = cpu_model(),
          .cores = static_cast<int>(std::thread::hardware_concurrency()),
          .threads = at::get_num_threads(),
          .instruction_set = std::string(active_instruction_set()),
          .torch_version = TORCH_VERSION};
}

Machine describe_machine() {
  Machine machine = look_at_machine();
  machine.product_rate = measure_product_rate();
  return machine;
}

double busy_threads_elsewhere() {
  constexpr int kSamples = 20;
  int running = 0;
  for (int i = 0; i < kSamples; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::ifstream file(
        "/proc/loadavg");  // "0.10 0.20 0.30 2/345 6789": running / all threads, this one included
    std::string skipped;
    int now = 1;
    file >> skipped >> skipped >> skipped >> now;
    running += std::max(0, now - 1);
  }
  return static_cast<double>(running) / kSamples;
}

std::string machine_text(const Machine& machine) {
  return machine.cpu + ", " + std::to_string(machine.cores) + " cores, " +
         std::to_string(machine.threads) + " threads, " + machine.instruction_set + ", torch " +
         machine.torch_version + ", product rate " +
         std::to_string(static_cast<int>(machine.product_rate / 1e9)) + " GFLOP/s";
}

}  // namespace fmmformer::bench
