// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <cstddef>
#include <cstdint>

namespace fmmformer::cpu {

/// From here on an allocation is a mapping of its own (the most that glibc's threshold grows to):
/// fresh pages in every call, however often the last ones were freed.
inline constexpr int64_t kFreshMemoryBytes = int64_t{32} << 20;

/// The tensor, whose memory nobody has touched yet, on pages of 2 MiB where the system lends them.
/// Faulting in a large result page by page takes longer than writing it: a sixth of the time of
/// N = 65,536 with 8 heads of 64 channels. Smaller results lie in memory that malloc hands out
/// again, and stay as they are.
inline at::Tensor on_huge_pages(at::Tensor fresh) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr size_t kPage = size_t{2} << 20;
  if (static_cast<int64_t>(fresh.nbytes()) >= kFreshMemoryBytes) {
    char* begin = static_cast<char*>(fresh.data_ptr());
    const size_t before = (kPage - reinterpret_cast<uintptr_t>(begin) % kPage) % kPage;
    const size_t whole_pages = (fresh.nbytes() - before) / kPage * kPage;
    madvise(begin + before, whole_pages, MADV_HUGEPAGE);  // a wish: may fail
  }
#endif
  return fresh;
}

}  // namespace fmmformer::cpu
