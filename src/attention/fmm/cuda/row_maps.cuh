// SPDX-License-Identifier: Apache-2.0
// RowMaps of a call, made on the host.
#pragma once

#include <cudaTypedefs.h>

#include "attention/fmm/cuda/row_copies.cuh"
#include "attention/fmm/cuda/sweep.h"

namespace fmmformer::cuda {

/// Of a bf16 tensor, so many of its rows at a time. A row has 32 or 64 channels in shared memory,
/// zeros where the tensor has fewer.
inline cudaError_t make_row_map(RowMap& map, const View& view, const SweepArgs& args, int channels,
                                int rows) {
  // The driver's function; programs are not linked with the driver.
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                               12000, cudaEnableDefault, &found);
#else
    const cudaError_t error =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found);
#endif
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess
               ? reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function)
               : nullptr;
  }();
  if (!encode) return cudaErrorNotSupported;
  constexpr int kElementBytes = 2;
  const cuuint64_t sizes[] = {cuuint64_t(args.head_dim), cuuint64_t(args.heads),
                              cuuint64_t(args.length), cuuint64_t(args.batch)};
  // Of one element, any stride will do.
  const auto bytes = [&](int64_t stride, int64_t size) {
    return cuuint64_t((size > 1 ? stride : channels) * kElementBytes);
  };
  const cuuint64_t strides[] = {bytes(view.head_stride, args.heads),
                                bytes(view.row_stride, args.length),
                                bytes(view.batch_stride, args.batch)};
  const cuuint32_t box[] = {cuuint32_t(channels), 1, cuuint32_t(rows), 1}, steps[] = {1, 1, 1, 1};
  const CUtensorMapSwizzle permuted =
      channels * kElementBytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
  const CUresult result =
      encode(&map.map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, view.data, sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, permuted, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace fmmformer::cuda
