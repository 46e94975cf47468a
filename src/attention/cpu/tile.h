// SPDX-License-Identifier: Apache-2.0
// What the CPU kernels of all operators agree on: tensors by strides, and tiles of padded rows. No
// torch here.
#pragma once

#include <cstdint>

#include "fmmformer/attention/options.h"

namespace fmmformer::cpu {

enum class Element { kFloat64, kFloat32, kBFloat16, kFloat16 };

/// A [batch, length, heads, dim] tensor by strides, in elements; the last dimension is contiguous.
struct View {
  void* data = nullptr;
  int64_t batch_stride = 0, row_stride = 0, head_stride = 0;
};

/// Rows [begin, end) of one (batch entry, head).
struct Segment {
  int64_t batch, head, begin, end;
};

// Tokens. Longer chunks waste work inside the chunk, shorter ones traffic to the state.
inline constexpr int64_t kChunk = 32;
inline constexpr int64_t kVectorPad =
    16;  // feature and value rows are padded to whole 64-byte (fp32) vectors

constexpr int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}
constexpr int64_t padded(int64_t dim) { return round_up(dim, kVectorPad); }

/// How a row of q or k becomes a feature row: the maps side by side, each padded.
struct FeatureLayout {
  int64_t head_dim = 0;
  int maps = 0;
  FeatureMap feature_maps[kMaxFeatureMaps] = {};
  bool unit_features = false;
};
inline int64_t feature_width(const FeatureLayout& layout) {
  return layout.maps * padded(layout.head_dim);
}

}  // namespace fmmformer::cpu
