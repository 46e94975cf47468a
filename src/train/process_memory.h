// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace fmmformer::train {

/// The most memory so far: of this process (CPU), or of torch's allocator (GPU).
int64_t peak_bytes(const c10::Device& device);

/// "So far" begins anew: for a process that trains several models one after another.
void forget_peak_bytes(const c10::Device& device);

}  // namespace fmmformer::train
