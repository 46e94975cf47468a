// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "attention/cpu/arena.h"

namespace fmmformer::cpu {

/// Waking a thread costs some microseconds, and milliseconds on a machine that is busy: as long as
/// this many multiply-adds take.
inline constexpr int64_t kWorkWorthAThread = 200'000;

/// The scratch of this thread. Kept between calls: fresh pages cost more than the small tasks
/// themselves.
inline Arena& thread_arena() {
  thread_local Arena arena;
  return arena;
}

/// Calls run(worker) for every worker in [0, workers), on as many of torch's threads as there are.
template <typename Run>
void run_workers(int64_t workers, const Run& run) {
#ifdef FMMFORMER_STD_THREADS  // thread sanitizer builds: it does not understand OpenMP's barriers
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < workers; ++t) threads.emplace_back(run, t);
  for (std::thread& thread : threads) thread.join();
#else
  at::parallel_for(0, workers, 1, [&](int64_t first, int64_t last) {
    for (int64_t worker = first; worker < last; ++worker) run(worker);
  });
#endif
}

/// Runs work(task, arena) for every task in [0, tasks), spread over torch's threads where that
/// pays; a task is about `cost` multiply-adds. Each thread has a run of neighbouring tasks, mostly
/// heads that lie side by side in every row, and, done with these, takes from the others' runs, so
/// that a core which others use too holds nobody up. What a task computes must not depend on which
/// thread runs it.
template <typename Work>
void parallel_tasks(int64_t tasks, int64_t cost, const Work& work) {
  const int64_t least = std::max<int64_t>(1, kWorkWorthAThread / std::max<int64_t>(cost, 1));
  const int64_t workers =
      std::clamp<int64_t>((tasks + least - 1) / least, 1, at::get_num_threads());
  std::vector<std::atomic<int64_t>> taken(static_cast<size_t>(workers));  // of every run
  run_workers(workers, [&](int64_t worker) {
    for (int64_t n = 0; n < workers; ++n) {
      const int64_t whose = (worker + n) % workers;
      const int64_t begin = tasks * whose / workers, end = tasks * (whose + 1) / workers;
      for (int64_t task = begin + taken[whose]++; task < end; task = begin + taken[whose]++)
        work(task, thread_arena());
    }
  });
}

}  // namespace fmmformer::cpu
