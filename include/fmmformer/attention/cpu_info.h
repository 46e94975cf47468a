// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace fmmformer {

/// The instruction set that the CPU kernels use on this machine: "AVX-512", "AVX2", "SSE4", ... The
/// environment variable FMMFORMER_ISA (avx512, avx2 or sse4), read once when the library is loaded,
/// holds them to an older one.
std::string active_instruction_set();

}  // namespace fmmformer
