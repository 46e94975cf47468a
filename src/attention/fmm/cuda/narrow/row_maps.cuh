// SPDX-License-Identifier: Apache-2.0
// RowMaps of a call, made on the host.
#pragma once

#include <cudaTypedefs.h>

#include "attention/fmm/cuda/narrow/row_copies.cuh"

namespace fmmformer::cuda::narrow {

/// Of the tensors that a call has.
inline cudaError_t make_row_maps(const SweepArgs& args, RowMaps& maps) {
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
  const View* views[kTensors] = {&args.q,        &args.k,  &args.v,  &args.out,
                                 &args.grad_out, &args.dq, &args.dk, &args.dv};
  for (int i = 0; i < kTensors; ++i) {
    const View& view = *views[i];
    if (!view.data) continue;
    const cuuint64_t sizes[] = {kDim, cuuint64_t(args.heads), cuuint64_t(args.length),
                                cuuint64_t(args.batch)};
    // Of one element, any stride will do.
    const auto bytes = [](int64_t stride, int64_t size) {
      return cuuint64_t(size > 1 ? stride * int64_t(sizeof(Elem)) : kRowBytes);
    };
    const cuuint64_t strides[] = {bytes(view.head_stride, args.heads),
                                  bytes(view.row_stride, args.length),
                                  bytes(view.batch_stride, args.batch)};
    const bool loaded = i == kQ || i == kK || i == kV || i == kGradOut;
    const cuuint32_t box[] = {kDim, 1, cuuint32_t(loaded ? kRows : kBlockDim), 1},
                     steps[] = {1, 1, 1, 1};
    const CUresult result =
        encode(&maps.of[i], CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, view.data, sizes, strides, box,
               steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_64B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}

}  // namespace fmmformer::cuda::narrow
