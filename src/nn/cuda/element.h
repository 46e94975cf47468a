// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fmmformer::cuda {

/// What the kernels of this folder read and write; they compute in fp32.
enum class Element { kFloat, kBFloat16, kHalf };

}  // namespace fmmformer::cuda
