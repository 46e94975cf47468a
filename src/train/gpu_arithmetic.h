// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fmmformer::train {

/// How torch's matrix products on a GPU round, for the whole process: fp32 is fp32 unless `tf32`,
/// and long bf16 sums are taken in fp32. Also gives cuBLAS the workspace under which it promises
/// the same bits every time, unless the user's environment says otherwise. To be called before the
/// first product.
void set_gpu_arithmetic(bool tf32);

}  // namespace fmmformer::train
