// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/attention/cpu_info.h"

#include <torch/library.h>

#include <cstdlib>
#include <string_view>

#include "attention/cpu/targets.h"
#include "hwy/highway.h"

namespace fmmformer {
namespace {

int64_t targets_to_disable(std::string_view name) {
#if HWY_ARCH_X86 && !defined(FMMFORMER_SCALAR)
  if (name == "avx512") {
    if ((hwy::SupportedTargets() & HWY_AVX3) == 0) {
      TORCH_WARN("FMMFORMER_ISA is 'avx512', which this CPU does not have. Using the best it has.");
    }
    return 0;
  }
  if (name == "avx2") return HWY_AVX3 | HWY_AVX3_DL;
  if (name == "sse4") return HWY_AVX3 | HWY_AVX3_DL | HWY_AVX2;
#endif
  TORCH_WARN("FMMFORMER_ISA is '", name,
             "'; allowed: avx512, avx2, sse4 (x86 only). Using the best one.");
  return 0;
}

// Before the first kernel runs.
const bool kForced = [] {
  if (const char* name = std::getenv("FMMFORMER_ISA"); name != nullptr && *name != '\0') {
    hwy::DisableTargets(targets_to_disable(name));
  }
  return true;
}();

TORCH_LIBRARY_FRAGMENT(fmmformer, m) {
  m.def("_active_instruction_set() -> str", &active_instruction_set);
}

}  // namespace

std::string active_instruction_set() {
#ifdef FMMFORMER_SCALAR
  return "scalar";
#else
  const int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  const std::string_view name =
      hwy::TargetName(usable & -usable);  // the lowest bit is the best target
  return name == "AVX3" ? "AVX-512" : std::string(name);
#endif
}

}  // namespace fmmformer
