// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Marks what CPU and CUDA sources share.
#if defined(__CUDACC__)
#define FMMFORMER_HOST_DEVICE __host__ __device__
#else
#define FMMFORMER_HOST_DEVICE
#endif
