// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fmmformer {

/// Lets the process keep what it frees, from here on, as under an allocator that caches. Without,
/// glibc gives large blocks back and fresh tensors cost page faults: a tenth of a training step on
/// the CPU, and at length 65536 most of an attention made of torch operators. Children that are
/// started later do the same.
void keep_freed_memory();

}  // namespace fmmformer
