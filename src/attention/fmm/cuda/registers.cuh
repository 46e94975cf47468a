// SPDX-License-Identifier: Apache-2.0
// Registers that warpgroups of a thread block hand round. What there is is what the kernel began
// with; elsewhere than on GPUs of compute capability 9.0 everybody keeps that.
#pragma once

namespace fmmformer::cuda {

/// A team's threads give registers back that they had at launch, or wait for more.
template <int kCount>
__device__ __forceinline__ void leave_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kCount));
#endif
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kCount));
#endif
}

}  // namespace fmmformer::cuda
