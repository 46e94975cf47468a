// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace fmmformer::bench {

/// The most bytes of CPU tensors that `work` held at one time beyond those that existed before it.
/// Counts what goes through torch's allocator; scratch that a kernel takes elsewhere is not seen.
/// Not for two threads at once.
int64_t peak_tensor_bytes(const std::function<void()>& work);

/// Lets the process keep what it frees, from here on, as under an allocator that caches. Without,
/// glibc gives large blocks back and fresh tensors cost page faults: at length 65536 these are most
/// of the composite's time.
void keep_freed_memory();

}  // namespace fmmformer::bench
