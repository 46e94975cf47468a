// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace fmmformer::bench {

/// The most bytes of CPU tensors that `work` held at one time beyond those that existed before it.
/// Counts what goes through torch's allocator; scratch that a kernel takes elsewhere is not seen.
/// Not for two threads at once.
int64_t peak_tensor_bytes(const std::function<void()>& work);

}  // namespace fmmformer::bench
