// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace fmmformer::bench {

/// The most bytes of CPU tensors that `work` held at one time beyond those that existed before it.
/// Counts what goes through torch's allocator; scratch that a kernel takes elsewhere is not seen.
/// Not for two threads at once.
int64_t peak_tensor_bytes(const std::function<void()>& work);

/// Lets the process keep what it frees, from here on. Otherwise a candidate with large temporaries,
/// by giving them back to the system, makes the next one in the round fault its pages in anew: the
/// composite then takes 150 ms instead of the 110 it takes alone (length 2048, 3 feature maps), and
/// at length 65536 page faults are most of its time.
void keep_freed_memory();

}  // namespace fmmformer::bench
