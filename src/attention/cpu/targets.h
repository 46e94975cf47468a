// SPDX-License-Identifier: Apache-2.0
// Include first in every SIMD source: the instruction sets that it is compiled for, SSE4 (the
// baseline), AVX2 and AVX-512 on x86; FMMFORMER_SCALAR leaves Highway's portable emulation alone,
// to test without any of them.
#pragma once

#ifdef FMMFORMER_SCALAR
#define HWY_COMPILE_ONLY_EMU128
#define HWY_BROKEN_EMU128 \
  0  // Highway distrusts gcc 12.2 here; our tests run on just this combination
#else
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL)  // nothing for our kernels beyond SSE4 and AVX-512
#endif
