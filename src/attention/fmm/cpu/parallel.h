// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#include "attention/fmm/cpu/arena.h"

namespace fmmformer::cpu {

/// Runs work(task, arena) for every task in [0, tasks), spread over torch's threads. What a task
/// computes must not depend on which thread runs it.
template <typename Work>
void parallel_tasks(int64_t tasks, const Work& work) {
  const auto run = [&work](int64_t begin, int64_t end) {
    thread_local Arena
        arena;  // kept between calls: fresh pages cost more than the small tasks themselves
    for (int64_t task = begin; task < end; ++task) work(task, arena);
  };
#ifdef FMMFORMER_STD_THREADS  // thread sanitizer builds: it does not understand OpenMP's barriers
  const int64_t count = std::clamp<int64_t>(at::get_num_threads(), 1, std::max<int64_t>(tasks, 1));
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < count; ++t) {
    threads.emplace_back(run, tasks * t / count, tasks * (t + 1) / count);
  }
  for (std::thread& thread : threads) thread.join();
#else
  at::parallel_for(0, tasks, /*grain_size=*/1, run);
#endif
}

}  // namespace fmmformer::cpu
