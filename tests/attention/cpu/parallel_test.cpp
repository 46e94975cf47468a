// SPDX-License-Identifier: Apache-2.0
#include "attention/cpu/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace fmmformer::cpu {
namespace {

// Without OpenMP, as this file is compiled, one thread takes every other one's tasks; the thread
// sanitizer's build has them all.
TEST(ParallelTasks, RunEachTaskOnceHoweverManyThreadsThereAre) {
  const int threads = at::get_num_threads();
  for (const int workers : {1, 2, 3}) {
    at::set_num_threads(workers);
    for (const int64_t tasks : {0, 1, 2, 7, 64}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(tasks));
      parallel_tasks(tasks, /*cost=*/kWorkWorthAThread,
                     [&](int64_t task, Arena&) { ++runs[static_cast<size_t>(task)]; });
      for (const std::atomic<int>& count : runs) EXPECT_EQ(count, 1);
    }
  }
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace fmmformer::cpu
