// SPDX-License-Identifier: Apache-2.0
// Before torch's: what is there for the GPU serves tensors of the CPU.
#pragma once

#include_next <torch/library.h>

#undef TORCH_LIBRARY_IMPL
#define TORCH_LIBRARY_IMPL(library, backend, m) _TORCH_LIBRARY_IMPL(library, CPU, m, C10_UID)
