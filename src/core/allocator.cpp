// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/core/allocator.h"

#include <malloc.h>
#include <stdlib.h>

#include <limits>

namespace fmmformer {

void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);  // a mapping of its own would go back to the system when freed
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  setenv("MALLOC_MMAP_MAX_", "0", 1);
  setenv("MALLOC_TRIM_THRESHOLD_", "2147483647", 1);
}

}  // namespace fmmformer
