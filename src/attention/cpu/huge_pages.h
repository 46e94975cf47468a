// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attention/cpu/parallel.h"

namespace fmmformer::cpu {

/// From here on an allocation is a mapping of its own (the most that glibc's threshold grows to):
/// fresh pages in every call, however often the last ones were freed.
inline constexpr int64_t kFreshMemoryBytes = int64_t{32} << 20;

/// The tensor, whose memory nobody has touched yet, on pages of 2 MiB where the system lends them,
/// and with all of these there. Faulting in a large result page by page takes longer than writing
/// it: a sixth of the time of N = 65,536 with 8 heads of 64 channels. Left to the sweeps, threads
/// whose heads lie side by side meet at the same page, and each clears one, of which one is thrown
/// away. Smaller results lie in memory that malloc hands out again, and stay as they are.
inline at::Tensor on_huge_pages(at::Tensor fresh) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr size_t kPage = size_t{2} << 20;
  if (static_cast<int64_t>(fresh.nbytes()) < kFreshMemoryBytes) return fresh;
  char* begin = static_cast<char*>(fresh.data_ptr());
  begin += (kPage - reinterpret_cast<uintptr_t>(begin) % kPage) % kPage;
  char* end = static_cast<char*>(fresh.data_ptr()) + fresh.nbytes();
  const int64_t pages = (end - begin) / static_cast<int64_t>(kPage);
  // Both are wishes: a system may refuse either, and the sweeps fault in what is not there.
  madvise(begin, pages * kPage, MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE  // Linux 5.14
  const int64_t workers = std::clamp<int64_t>(pages, 1, at::get_num_threads());
  run_workers(workers, [&](int64_t worker) {
    const int64_t first = pages * worker / workers, last = pages * (worker + 1) / workers;
    madvise(begin + first * kPage, (last - first) * kPage, MADV_POPULATE_WRITE);
  });
#endif
#endif
  return fresh;
}

}  // namespace fmmformer::cpu
