// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

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
  constexpr uintptr_t kPage = uintptr_t{2} << 20;
  if (static_cast<int64_t>(fresh.nbytes()) >= kFreshMemoryBytes) {
    const auto begin = reinterpret_cast<uintptr_t>(fresh.data_ptr());
    const uintptr_t first = (begin + kPage - 1) / kPage * kPage;
    const uintptr_t end = (begin + fresh.nbytes()) / kPage * kPage;
    madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);  // a wish: may fail
  }
#endif
  return fresh;
}

}  // namespace fmmformer::cpu
