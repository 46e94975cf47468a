// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
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

/// Runs work(task, arena) for every task in [0, tasks), spread over torch's threads where that
/// pays; a task is about `cost` multiply-adds. What a task computes must not depend on which thread
/// runs it.
template <typename Work>
void parallel_tasks(int64_t tasks, int64_t cost, const Work& work) {
  const auto run = [&work](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) work(task, thread_arena());
  };
#ifdef FMMFORMER_STD_THREADS  // thread sanitizer builds: it does not understand OpenMP's barriers
  const int64_t count = std::clamp<int64_t>(at::get_num_threads(), 1, std::max<int64_t>(tasks, 1));
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < count; ++t) {
    threads.emplace_back(run, tasks * t / count, tasks * (t + 1) / count);
  }
  for (std::thread& thread : threads) thread.join();
#else
  at::parallel_for(0, tasks, std::max<int64_t>(1, kWorkWorthAThread / std::max<int64_t>(cost, 1)),
                   run);
#endif
}

}  // namespace fmmformer::cpu
